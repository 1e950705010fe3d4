// SPDX-License-Identifier: Apache-2.0
//! Both ends of async streams against each other, and against scripted peers that keep or break the
//! rules.

mod consumer;
mod consumer_hostile;
mod interleavings;
mod pair;
mod producer;
mod producer_ends;
mod recorder;
mod scripted;
mod support;
mod threads;
