//! HTTP/2 receivers that break off, frame by frame. What they may have worked on is not sent again by the client itself: the
//! next attempt is the dispatcher's to make, and to count (kolmafia/kolmafia#725, curl/curl#5119).

use crate::{
    receiver::{destination, send, sender_in, webhook},
    tls::{acceptor, certificates, trusting},
};
use dispatcher::HttpSend;
use schemas::OutcomeKind;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

const NO_ERROR: u32 = 0;
const REFUSED_STREAM: u32 = 7;
const ENHANCE_YOUR_CALM: u32 = 11;

/// What follows a whole request on stream `id`.
#[derive(Clone, Copy)]
enum Step {
    /// 200.
    Ok,
    /// GOAWAY that names `last` as the last stream looked at; then the connection is closed.
    Goaway {
        last: u32,
        code: u32,
    },
    /// GOAWAY, and 200 for what was under way.
    GoawayAndOk,
    Reset(u32),
}

#[derive(Default)]
struct Seen {
    connections: AtomicUsize,
    requests: AtomicUsize,
}

/// A receiver whose last step stays, and its sender.
async fn start(steps: &'static [Step]) -> (HttpSend, Arc<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut config = destination(&format!("https://{}/hooks", listener.local_addr().unwrap()));
    config.tls = Some(trusting("ca.pem"));
    let seen = Arc::new(Seen::default());
    let serving = Arc::clone(&seen);
    tokio::spawn(async move {
        let acceptor = acceptor("server", false, &[b"h2"]);
        while let Ok((stream, _)) = listener.accept().await {
            serving.connections.fetch_add(1, Ordering::SeqCst);
            let (acceptor, serving) = (acceptor.clone(), Arc::clone(&serving));
            tokio::spawn(async move {
                let stream = acceptor.accept(stream).await.unwrap();
                // The other side may close whenever it likes.
                drop(serve(stream, steps, &serving).await);
            });
        }
    });
    (sender_in(&certificates(), config).unwrap(), seen)
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    steps: &[Step],
    seen: &Seen,
) -> std::io::Result<()> {
    stream.read_exact(&mut [0; 24]).await?;
    frame(&mut stream, SETTINGS, 0, 0, &[]).await?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload).await?;
        let (kind, flags) = (head[3], head[4]);
        let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        if kind == SETTINGS && flags & 1 == 0 {
            frame(&mut stream, SETTINGS, 1, 0, &[]).await?;
        }
        if !matches!(kind, DATA | HEADERS) || flags & 1 == 0 {
            continue;
        }
        let number = seen.requests.fetch_add(1, Ordering::SeqCst);
        let goaway = |last: u32, code: u32| [last.to_be_bytes(), code.to_be_bytes()].concat();
        // In the static table of HPACK, 8 is `:status: 200`.
        let ok: &[u8] = &[0x88];
        match steps[number.min(steps.len() - 1)] {
            Step::Ok => frame(&mut stream, HEADERS, 5, id, ok).await?,
            Step::Reset(code) => {
                frame(&mut stream, RST_STREAM, 0, id, &code.to_be_bytes()).await?;
            }
            Step::Goaway { last, code } => {
                frame(&mut stream, GOAWAY, 0, 0, &goaway(last, code)).await?;
                return stream.shutdown().await;
            }
            Step::GoawayAndOk => {
                frame(&mut stream, GOAWAY, 0, 0, &goaway(id, NO_ERROR)).await?;
                frame(&mut stream, HEADERS, 5, id, ok).await?;
            }
        }
    }
}

async fn frame<S: AsyncWrite + Unpin>(
    stream: &mut S,
    kind: u8,
    flags: u8,
    id: u32,
    payload: &[u8],
) -> std::io::Result<()> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(id.to_be_bytes());
    bytes.extend(payload);
    stream.write_all(&bytes).await?;
    stream.flush().await
}

/// Kinds of so many attempts in a row; each is seen by the receiver once at most.
async fn attempts(steps: &'static [Step], count: usize) -> (Vec<OutcomeKind>, usize) {
    let (sender, seen) = start(steps).await;
    let mut kinds = Vec::new();
    for _ in 0..count {
        kinds.push(send(&sender, &webhook(b"{}")).await.kind);
    }
    let requests = seen.requests.load(Ordering::SeqCst);
    assert!(requests <= count, "{requests} requests of {count} attempts");
    (kinds, requests)
}

use OutcomeKind::{Delivered, Failed};

#[tokio::test]
async fn streams_share_a_connection() {
    let (sender, seen) = start(&[Step::Ok]).await;
    for _ in 0..3 {
        assert_eq!(send(&sender, &webhook(b"{}")).await.kind, Delivered);
    }
    assert_eq!(seen.connections.load(Ordering::SeqCst), 1);
    assert_eq!(seen.requests.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn what_a_goaway_cuts_off_is_a_failed_attempt() {
    // It may have been worked on, and it was not: both are told to us, and both are one attempt.
    for steps in [
        &[
            Step::Goaway {
                last: 1,
                code: NO_ERROR,
            },
            Step::Ok,
        ] as &'static [Step],
        &[
            Step::Goaway {
                last: 0,
                code: NO_ERROR,
            },
            Step::Ok,
        ],
    ] {
        assert_eq!(
            attempts(steps, 3).await,
            (vec![Failed, Delivered, Delivered], 3)
        );
    }
}

#[tokio::test]
async fn an_answer_after_a_goaway_counts() {
    let (kinds, requests) = attempts(&[Step::GoawayAndOk], 3).await;
    assert_eq!((kinds, requests), (vec![Delivered; 3], 3));
}

#[tokio::test]
async fn a_refused_stream_is_one_attempt() {
    let steps = &[
        Step::Reset(REFUSED_STREAM),
        Step::Reset(REFUSED_STREAM),
        Step::Ok,
    ];
    assert_eq!(
        attempts(steps, 3).await,
        (vec![Failed, Failed, Delivered], 3)
    );
}

#[tokio::test]
async fn a_receiver_that_wants_calm_is_left_alone() {
    let steps = &[Step::Goaway {
        last: 0,
        code: ENHANCE_YOUR_CALM,
    }];
    assert_eq!(attempts(steps, 3).await, (vec![Failed; 3], 3));
    let steps = &[Step::Reset(ENHANCE_YOUR_CALM)];
    assert_eq!(attempts(steps, 3).await, (vec![Failed; 3], 3));
}
