//! The CQL store on a real node. `FENCEPOST_TEST_CQL=host:port` names it; `tests/stack/stack up` starts one.
//! With `FENCEPOST_TEST_STACK=required` a missing node is a failure; otherwise these tests say so and pass.
//!
//! "Applied, but the answer was lost" is made by a proxy between driver and node that swallows the answers.

#[path = "cql/answers.rs"]
mod answers;
#[path = "cql/node.rs"]
mod node;
#[path = "cql/races.rs"]
mod races;
#[path = "cql/rows.rs"]
mod rows;
#[path = "cql/suite.rs"]
mod suite;
