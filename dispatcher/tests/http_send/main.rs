//! `HttpSend` against receivers on the loopback that speak HTTP byte by byte.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod addresses;
mod answers;
mod credentials;
mod http2;
mod mistakes;
mod proxies;
mod receiver;
mod requests;
mod reused;
mod tls;
