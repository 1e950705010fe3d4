// SPDX-License-Identifier: Apache-2.0
//! What an import accepts and refuses, and what an export gives away.

mod export;
mod import;
mod view;
