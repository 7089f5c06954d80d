//! `HttpSend` against receivers on the loopback that speak HTTP byte by byte.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod addresses;
mod answers;
mod receiver;
mod requests;
