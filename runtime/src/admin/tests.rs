use super::*;
use axum::{
    body::{Body, to_bytes},
    http::Request,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower::ServiceExt;

async fn get_json(readiness: &Readiness) -> (StatusCode, serde_json::Value) {
    let request = Request::get("/readyz").body(Body::empty()).unwrap();
    let response = router(readiness.clone(), Metrics::empty())
        .oneshot(request)
        .await
        .unwrap();
    let status = response.status();
    let body = to_bytes(response.into_body(), 64 * 1024).await.unwrap();
    (status, serde_json::from_slice(&body).unwrap())
}

#[tokio::test(start_paused = true)]
async fn readiness_says_which_check_fails_and_why() {
    let readiness = Readiness::new();
    assert_eq!(get_json(&readiness).await.0, StatusCode::OK);

    readiness.check("log", Duration::from_millis(100), || async { Ok(()) });
    assert_eq!(get_json(&readiness).await.0, StatusCode::OK);

    readiness.check("store", Duration::from_millis(100), || async {
        Err("no host".to_owned())
    });
    readiness.check("slow", Duration::from_millis(100), std::future::pending);
    let (status, report) = get_json(&readiness).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(report["checks"]["log"], "ok");
    assert_eq!(report["checks"]["store"], "no host");
    assert_eq!(report["checks"]["slow"], "no answer within 100 ms");
}

#[tokio::test]
async fn draining_is_not_ready() {
    let readiness = Readiness::new();
    readiness.check("log", Duration::from_millis(100), || async { Ok(()) });
    readiness.drain();
    let (status, report) = get_json(&readiness).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(report["draining"], true);
    assert_eq!(report["checks"]["log"], "ok");
}

#[tokio::test]
async fn what_the_checks_hold_is_let_go_at_the_end() {
    let readiness = Readiness::new();
    let held = Arc::new(());
    let holder = Arc::clone(&held);
    readiness.check("log", Duration::from_millis(100), move || {
        let holder = Arc::clone(&holder);
        async move {
            drop(holder);
            Ok(())
        }
    });
    assert_eq!(get_json(&readiness).await.0, StatusCode::OK);
    readiness.close();
    assert_eq!(Arc::strong_count(&held), 1);
    assert_eq!(
        get_json(&readiness).await.0,
        StatusCode::SERVICE_UNAVAILABLE
    );
}

#[tokio::test]
async fn serving_ends_with_the_token() {
    let stop = CancellationToken::new();
    let (address, serving) = served(&stop).await;
    // An idle connection does not hold the end up.
    let idle = TcpStream::connect(address).await.unwrap();
    stop.cancel();
    serving.await.unwrap().unwrap();
    drop(idle);
}

/// A server on a port of its own, and its address.
async fn served(stop: &CancellationToken) -> (SocketAddr, tokio::task::JoinHandle<io::Result<()>>) {
    let config = AdminConfig {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        ..AdminConfig::default()
    };
    let admin = Admin::bind(&config).await.unwrap();
    let address = admin.address().unwrap();
    let serving = admin.serve(Readiness::new(), Metrics::empty(), stop.clone());
    (address, tokio::spawn(serving))
}

/// Everything that one connection answers to a request that would keep it open.
async fn answer(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn a_connection_has_one_request() {
    let stop = CancellationToken::new();
    let (address, _) = served(&stop).await;
    let answer = answer(address).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.ends_with("ok\n"), "{answer}");
    stop.cancel();
}

/// The clock stands still and jumps to the next timer whenever everything waits.
#[tokio::test(start_paused = true)]
async fn silent_connections_are_cut_off_and_no_more_than_the_cap_are_open() {
    let stop = CancellationToken::new();
    let (address, _) = served(&stop).await;
    let began = tokio::time::Instant::now();
    let mut silent = Vec::new();
    for _ in 0..=CONNECTIONS_MAX {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    // Behind as many as may be open at once and one: after the first deadline there is room for both.
    let answer = timeout(10 * CONNECTION_DEADLINE, answer(address))
        .await
        .unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(
        began.elapsed() >= CONNECTION_DEADLINE,
        "{:?}",
        began.elapsed()
    );
    let mut rest = Vec::new();
    silent[0].read_to_end(&mut rest).await.unwrap();
    assert!(rest.is_empty());
    stop.cancel();
}
