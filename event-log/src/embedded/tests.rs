//! What can not be brought about from outside: threads that end, records that have no place.

use super::*;
use bytes::Bytes;
use tempfile::TempDir;

const DEADLINE: Duration = Duration::from_secs(30);

fn config(dir: &TempDir) -> EmbeddedConfig {
    EmbeddedConfig {
        dir: dir.path().join("log"),
        ..EmbeddedConfig::default()
    }
}

fn open(dir: &TempDir) -> EmbeddedLog {
    EmbeddedLog::open(&config(dir), Clock::manual(1_800_000_000_000)).expect("opens")
}

async fn until_not_ready(log: &EmbeddedLog) {
    let ready = async {
        while log.ready().is_ok() {
            time::sleep(Duration::from_millis(5)).await;
        }
    };
    time::timeout(DEADLINE, ready).await.expect("not ready");
    assert!(matches!(log.ready(), Err(LogError::Fatal(_))));
}

#[tokio::test]
async fn without_its_writer_the_log_is_not_ready() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(&dir);
    assert_eq!(log.ready(), Ok(()));
    log.inner.shared.queue.close();
    until_not_ready(&log).await;
}

#[tokio::test]
async fn without_its_reader_the_log_is_not_ready() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut log = open(&dir);
    assert_eq!(log.ready(), Ok(()));
    Arc::get_mut(&mut log.inner).expect("no clone").requests = None;
    until_not_ready(&log).await;
}

#[test]
fn a_record_without_a_place_shifts_nobody() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = config(&dir);
    let files = Files::open(&config).expect("opens");
    let shared = Shared::new(&config, Clock::manual(0), &files.slots);
    let (appended, _) = watch::channel(0);
    let answers = [0, config.partitions, 1].map(|partition| {
        let (done, answer) = oneshot::channel();
        let record = Record {
            topic: Topic::DeadLetters,
            key: Bytes::new(),
            value: Bytes::new(),
            headers: Vec::new(),
        };
        let job = Job {
            record,
            partition,
            bytes: 0,
            done,
        };
        shared.queue.push(job).expect("room");
        answer
    });
    shared.queue.close();
    writer::run(&shared, &files.writer, files.slots, &appended);
    let [first, nowhere, last] = answers.map(|mut answer| answer.try_recv().expect("answered"));
    let at = |partition| {
        Ok(Appended {
            partition,
            offset: 0,
        })
    };
    assert_eq!((first, last), (at(0), at(1)));
    assert!(
        matches!(nowhere, Err(ProduceError::Unacknowledged(_))),
        "{nowhere:?}"
    );
}
