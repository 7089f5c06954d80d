//! The embedded log: the common suite, and what only a directory on a disk can get wrong.

use bytes::Bytes;
use event_log::{
    Consumer as _, Event, EventLog as _, Record, config::EmbeddedConfig, embedded::EmbeddedLog,
};
use futures::future::join_all;
use runtime::Clock;
use schemas::Topic;

#[tokio::test]
async fn smoke() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = EmbeddedConfig { dir: dir.path().into(), ..EmbeddedConfig::default() };
    let log = EmbeddedLog::open(&config, Clock::system()).expect("opens");
    let record = |n: usize| Record {
        topic: Topic::Webhooks,
        key: Bytes::from(n.to_string()),
        value: Bytes::from(vec![b'x'; 500]),
        headers: vec![("a".into(), Bytes::from_static(b"b"))],
    };
    let started = tokio::time::Instant::now();
    for round in 0..10 {
        let acked = join_all((0..5_000).map(|n| log.produce(record(round * 5_000 + n)))).await;
        assert!(acked.iter().all(Result::is_ok));
    }
    println!("50000 produced in {:?}", started.elapsed());
    let mut consumer = log.consumer().await.expect("a consumer");
    let mut seen = 0;
    let started = tokio::time::Instant::now();
    while seen < 50_000 {
        for event in consumer.next(100).await.expect("events") {
            seen += usize::from(matches!(event, Event::Record(_)));
        }
    }
    println!("50000 consumed in {:?}", started.elapsed());
}
