use super::{
    super::{
        Refusal, Verified,
        custom::testing::{BODIES, NOW_MS, Sent, secrets, tolerance, word},
    },
    *,
};
use crate::sign::Made;
use proptest::prelude::*;
use ring::{rand::SystemRandom, rsa::KeyPair, signature::RSA_PKCS1_SHA256};
use rustls::pki_types::{PrivatePkcs8KeyDer, pem::PemObject};
use std::sync::LazyLock;

const WEBHOOK_ID: &str = "9XL90610J3647323C";
const HERE: &str = "2027-01-15T08:00:00Z";
const URL: &str =
    "https://api.sandbox.paypal.com/v1/notifications/certs/CERT-360caa42-fca2a594-a5cafa77";
const BODY: &[u8] =
    br#"{"id":"WH-9UG43882HX7271132-6E0871324L7949614","event_type":"PAYMENT.SALE.COMPLETED"}"#;

macro_rules! pem {
    ($name:literal) => {
        include_bytes!(concat!("../../../tests/certificates/", $name))
    };
}

static KEY: LazyLock<KeyPair> = LazyLock::new(|| {
    let der = PrivatePkcs8KeyDer::from_pem_slice(pem!("paypal.key")).unwrap();
    KeyPair::from_pkcs8(der.secret_pkcs8_der()).unwrap()
});

/// Signs as PayPal would.
pub(crate) fn made_headers(
    time: &str,
    webhook_id: &str,
    certificate_url: &str,
    body: &[u8],
) -> Vec<(String, String)> {
    let id = "d938e770-8046-11e6-8103-6b62a8a99ac4";
    let message = format!("{id}|{time}|{webhook_id}|{}", crc32fast::hash(body));
    let mut signature = vec![0; KEY.public().modulus_len()];
    KEY.sign(
        &RSA_PKCS1_SHA256,
        &SystemRandom::new(),
        message.as_bytes(),
        &mut signature,
    )
    .unwrap();
    let headers = [
        (ID, id),
        (TIME, time),
        (ALGORITHM, RSA_SHA256),
        (CERTIFICATE_URL, certificate_url),
        (SIGNATURE, &STANDARD.encode(signature)),
    ];
    headers
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
}

fn made(time: &str, webhook_id: &str, body: &[u8]) -> Sent {
    Sent::of(Made {
        query: None,
        headers: made_headers(time, webhook_id, URL, body),
        body: body.to_vec(),
    })
}

fn good() -> Sent {
    made(HERE, WEBHOOK_ID, BODY)
}

fn certificate(pem: &[u8]) -> Certificate {
    Certificate::from_pem(pem).unwrap()
}

fn check(sent: &Sent) -> Result<Verified, Refusal> {
    let certificate = certificate(pem!("paypal.pem"));
    let ids = secrets(&["0XX", WEBHOOK_ID]);
    verify(&ids, &sent.request(), tolerance(), Some(&certificate))
}

#[test]
fn what_paypal_signs_is_accepted_and_every_body_is_bound_by_its_checksum() {
    for body in BODIES.into_iter().chain([BODY]) {
        let sent = made(HERE, WEBHOOK_ID, body);
        assert_eq!(certificate_url(&sent.request()), Ok(URL));
        assert_eq!(check(&sent), Ok(Verified { slot: 1 }), "{body:?}");
        let longer = [body, b"x"].concat();
        assert_eq!(word(&check(&sent.body(longer))), "mismatch", "{body:?}");
    }
    for at in 0..BODY.len() {
        let mut body = BODY.to_vec();
        body[at] ^= 1;
        assert_eq!(word(&check(&good().body(body))), "mismatch");
    }
}

/// The checksum of <https://reveng.sourceforge.io/crc-catalogue/17plus.htm#crc.cat.crc-32-iso-hdlc>, in decimal.
#[test]
fn the_checksum_is_the_usual_one() {
    assert_eq!(crc32fast::hash(b"123456789").to_string(), "3421780262");
}

#[test]
fn everything_that_may_be_wrong_with_a_request() {
    let sent = good();
    let signature = sent.text(SIGNATURE);
    let padded = format!("{signature} ");
    for (sent, expected) in [
        (sent.clone().without(SIGNATURE), "unsigned"),
        (sent.clone().without(ID), "missing"),
        (sent.clone().without(TIME), "missing"),
        (sent.clone().without(ALGORITHM), "missing"),
        (sent.clone().without(CERTIFICATE_URL), "missing"),
        (sent.clone().repeated(SIGNATURE), "repeated"),
        (sent.clone().repeated(ID), "repeated"),
        (sent.clone().repeated(TIME), "repeated"),
        (sent.clone().repeated(ALGORITHM), "repeated"),
        (sent.clone().repeated(CERTIFICATE_URL), "repeated"),
        (sent.clone().with(SIGNATURE, b""), "malformed"),
        (
            sent.clone().with(SIGNATURE, &signature.as_bytes()[..340]),
            "malformed",
        ),
        (sent.clone().with(SIGNATURE, padded.as_bytes()), "malformed"),
        (sent.clone().with(SIGNATURE, b"\xff"), "malformed"),
        (sent.clone().with(ID, b"d938e770"), "mismatch"),
        (sent.clone().with(ID, b""), "malformed"),
        (sent.clone().with(ID, b"a|b"), "malformed"),
        (sent.clone().with(ID, &[b'a'; 129]), "malformed"),
        (sent.clone().with(ALGORITHM, b"sha256WITHrsa"), "ok"),
        (sent.clone().with(ALGORITHM, b"SHA1withRSA"), "malformed"),
        (sent.clone().with(ALGORITHM, b"none"), "malformed"),
        (sent.clone().with(TIME, b"2027-01-15T08:00:01Z"), "mismatch"),
        (
            sent.clone().with(TIME, b"2027-01-15T08:00:00.000Z"),
            "mismatch",
        ),
        (
            sent.clone().with(TIME, b"2027-01-15T09:00:00+01:00"),
            "malformed",
        ),
        (
            sent.clone().with(TIME, b"2027-01-15 08:00:00Z"),
            "malformed",
        ),
        (sent.clone().with(TIME, b"2027-01-15T08:00:00"), "malformed"),
        (sent.clone().with(TIME, b"1800000000"), "malformed"),
        (
            sent.clone().with(TIME, b"2027-01-15T08:00:00Z|"),
            "malformed",
        ),
    ] {
        assert_eq!(word(&check(&sent)), expected, "{sent:?}");
        // Nothing is fetched for a request that could not be accepted whatever the certificate.
        let fetches = certificate_url(&sent.request()).is_ok();
        assert_eq!(fetches, ["ok", "mismatch"].contains(&expected), "{sent:?}");
    }
    for end in (0..340).step_by(7) {
        let mut other = signature.clone().into_bytes();
        other[end] = if other[end] == b'A' { b'B' } else { b'A' };
        assert_eq!(
            word(&check(&sent.clone().with(SIGNATURE, &other))),
            "mismatch"
        );
    }
    for others in [&["0XX"][..], &["", "a|b", "\u{1f389}"], &[]] {
        let certificate = certificate(pem!("paypal.pem"));
        let found = verify(
            &secrets(others),
            &sent.request(),
            tolerance(),
            Some(&certificate),
        );
        assert_eq!(found, Err(Refusal::Mismatch), "{others:?}");
    }
}

#[test]
fn the_time_is_bounded_on_both_sides() {
    let at = |ms| word(&check(&good().at(ms)));
    assert_eq!(at(NOW_MS + 9 * 3_600_000), "ok");
    assert_eq!(at(NOW_MS + 9 * 3_600_000 + 1), "stale");
    assert_eq!(at(NOW_MS - 60_000), "ok");
    assert_eq!(at(NOW_MS - 60_001), "early");
    let forged = made(HERE, "0YY", BODY).at(NOW_MS + 365 * 86_400_000);
    assert_eq!(word(&check(&forged)), "mismatch");
}

/// `a|b` in one field would be the same signed text as `a` and `b` in two.
#[test]
fn a_separator_in_the_webhook_id_is_no_way_around() {
    let sent = made(HERE, "A|1", BODY);
    let found = verify(
        &secrets(&["A|1"]),
        &sent.request(),
        tolerance(),
        Some(&certificate(pem!("paypal.pem"))),
    );
    assert_eq!(found, Err(Refusal::Mismatch));
}

#[test]
fn a_certificate_counts_only_in_its_time_and_with_its_key() {
    let good = certificate(pem!("paypal.pem"));
    let not_rsa = certificate(pem!("not-rsa.pem"));
    let message = |sent: &Sent| {
        format!(
            "{}|{HERE}|{WEBHOOK_ID}|{}",
            sent.text(ID),
            crc32fast::hash(BODY)
        )
    };
    let sent = made(HERE, WEBHOOK_ID, BODY);
    let signature = STANDARD.decode(sent.text(SIGNATURE)).unwrap();
    let message = message(&sent);
    let fits = |certificate: &Certificate, now_ms| {
        certificate.signed(message.as_bytes(), &signature, now_ms)
    };
    assert!(fits(&good, NOW_MS));
    assert!(fits(&good, good.not_after_ms()));
    assert!(!fits(&good, good.not_after_ms() + 1));
    assert!(!fits(&good, 0));
    assert!(!fits(&not_rsa, NOW_MS));
}

#[test]
fn names_are_paypals_or_not() {
    assert!(certificate(pem!("paypal.pem")).is_paypals());
    // Only the common name says so.
    assert!(certificate(pem!("sandbox.pem")).is_paypals());
    assert!(!certificate(pem!("other.pem")).is_paypals());
    assert!(!certificate(pem!("tls.pem")).is_paypals());
}

/// Compared with what openssl says of the same file.
#[test]
fn times_are_read() {
    let pem = pem!("paypal.pem");
    let not_after = "2126-11-06T16:58:59Z".parse::<jiff::Timestamp>().unwrap();
    assert_eq!(certificate(pem).not_after_ms(), not_after.as_millisecond());
    for (text, readable) in [
        (&pem[..100], false),
        (b"", false),
        (
            b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            false,
        ),
        (&pem!("paypal.key")[..], false),
        (&pem[..], true),
    ] {
        assert_eq!(Certificate::from_pem(text).is_ok(), readable);
    }
}

proptest! {
    #[test]
    fn no_certificate_panics(at: usize, byte: u8, cut: usize) {
        let der = rustls::pki_types::CertificateDer::from_pem_slice(pem!("paypal.pem")).unwrap();
        let mut der = der.to_vec();
        let at = at % der.len();
        der[at] = byte;
        der.truncate(cut % (4 * der.len()));
        let text = STANDARD.encode(der);
        let pem = format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n");
        if let Ok(certificate) = Certificate::from_pem(pem.as_bytes()) {
            prop_assert!(!certificate.signed(b"", b"", NOW_MS) || certificate.is_paypals());
        }
    }

    #[test]
    fn nothing_a_stranger_sends_panics(values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 5)) {
        let mut sent = good();
        for (name, value) in [ID, TIME, ALGORITHM, CERTIFICATE_URL, SIGNATURE].into_iter().zip(values) {
            if http::HeaderValue::from_bytes(&value).is_ok() {
                sent = sent.with(name, &value);
            }
        }
        drop(check(&sent));
    }
}
