// SPDX-License-Identifier: Apache-2.0
//! Interoperation with other users of the device in the same process.
//!
//! - `application_queue`: a queue of the application that a context is opened for.
//! - `shared_queue`: the order between the application's work and the context's.
//! - `library_queue`: a queue that another library owns.
//! - `foreign_memory`: memory and events of other libraries.
//! - `foreign_context`: memory of CUDA contexts that libraries create.

mod application_queue;
mod foreign_context;
mod foreign_memory;
mod library_queue;
mod shared_queue;

pub use application_queue::ApplicationQueue;
pub use foreign_context::ForeignContext;
pub use library_queue::LibraryQueue;
pub(crate) use shared_queue::SharedQueue;
