"""Makes samples.json: for every preset requests as its provider sends them, signed here with Python's hmac and hashlib and
with the package `cryptography` (48), by what the provider's documentation says. Knows nothing of the code under test.

    python3 ingest/tests/presets/samples.py > ingest/tests/presets/samples.json

Everything but the ECDSA signatures comes out the same each time."""

import base64
import hashlib
import hmac
import json
from urllib.parse import parse_qsl

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

AT_S = 1_700_000_000
ORIGIN = "made by hand after the provider's documentation; signed by samples.py (Python hmac, hashlib, cryptography)"
TEXT = "a secret of thirty-two characters"
RAW = bytes(range(1, 33))
URL = "https://hooks.example.com/hooks/s"


def mac(key, *parts, algorithm="sha256"):
    return hmac.new(key, b"".join(parts), algorithm).digest()


def b64(data):
    return base64.b64encode(data).decode()


def utf8(text):
    return text.encode()


def compact(value):
    return json.dumps(value, separators=(",", ":"))


def body_hash(body, source="s"):
    name = utf8(source)
    return "sha256-" + hashlib.sha256(len(name).to_bytes(8, "big") + name + utf8(body)).hexdigest()


SAMPLES = []


def sample(preset, variant, secret, sign, kind, first, repeat, other, ids=None, **more):
    """`first`, `repeat`, `other`: (headers, body). `ids`: of the three; without, they are hashes of the bodies."""
    requests = []
    for at, (headers, body) in enumerate((first, repeat, other)):
        at_s = AT_S + (0, 90, 7)[at]
        if callable(body):
            body = body(at_s)
        headers = {**headers, **sign(at_s, headers, utf8(body))}
        delivery_id = ids[at] if ids else body_hash(body)
        requests.append({"signed_at_ms": at_s * 1000, "headers": headers, "body": body, "delivery_id": delivery_id})
    SAMPLES.append({
        "preset": preset, "variant": variant, "origin": ORIGIN, "secret": secret, **more, "event_type": kind,
        "first": requests[0], "repeat": requests[1], "other": requests[2],
    })


def same(one, two):
    return (one, one, two)


JSON = {"content-type": "application/json"}
FORM = {"content-type": "application/x-www-form-urlencoded"}


def over_body(header, prefix, encode, algorithm="sha256"):
    return lambda at_s, headers, body: {header: prefix + encode(mac(utf8(TEXT), body, algorithm=algorithm))}


# GitHub
github = over_body("x-hub-signature-256", "sha256=", bytes.hex)
delivery = lambda kind, guid: {**JSON, "x-github-delivery": guid, "x-github-event": kind}
pull = ({**delivery("pull_request", "72d3162e-cc78-11e3-81ab-4c9367dc0958")}, compact({"action": "opened", "number": 2}))
push = ({**delivery("push", "8ac41c30-cc78-11e3-9f1d-000000000000")}, compact({"ref": "refs/heads/main"}))
sample("github", "json", TEXT, github, "pull_request.opened", *same(pull, push), ids=["72d3162e-cc78-11e3-81ab-4c9367dc0958"] * 2 + ["8ac41c30-cc78-11e3-9f1d-000000000000"])
form = ({**pull[0], **FORM}, "payload=%7B%22action%22%3A%22opened%22%2C%22title%22%3A%22caf%C3%A9%22%7D")
sample("github", "form", TEXT, github, "pull_request.opened", *same(form, push), ids=["72d3162e-cc78-11e3-81ab-4c9367dc0958"] * 2 + ["8ac41c30-cc78-11e3-9f1d-000000000000"])


# Standard Webhooks and those that use it
def standard(family, kind="v1"):
    def sign(at_s, headers, body):
        message = utf8(f"{headers[family + '-id']}.{at_s}.") + body
        made = mac(RAW, message) if kind == "v1" else ED25519.sign(message)
        return {f"{family}-timestamp": str(at_s), f"{family}-signature": f"{kind},{b64(made)}"}
    return sign


ED25519 = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SEED = ED25519.private_bytes_raw()
PUBLIC = ED25519.public_key().public_bytes_raw()
user = compact({"type": "user.created", "timestamp": "2023-11-14T22:13:20Z", "data": {"id": "u_1"}})
for preset, family, kind in [
    ("standard-webhooks", "webhook", "v1"), ("standard-webhooks", "svix", "v1"), ("svix", "svix", "v1"),
    ("svix", "webhook", "v1"), ("standard-webhooks-v1a", "webhook", "v1a"), ("standard-webhooks-v1a", "svix", "v1a"),
]:
    keys = {"secret": "whsec_" + b64(RAW)} if kind == "v1" else {"secret": "whpk_" + b64(PUBLIC)}
    more = {} if kind == "v1" else {"signing_secret": "whsk_" + b64(SEED)}
    sample(preset, family, keys["secret"], standard(family, kind), "user.created",
           *same(({**JSON, family + "-id": "msg_2KWPBgLlAfxdpx2AI54pPJ85f4W"}, user), ({**JSON, family + "-id": "msg_2"}, user)),
           ids=["msg_2KWPBgLlAfxdpx2AI54pPJ85f4W"] * 2 + ["msg_2"], **more)


# `t=…,v1=…`
def timed(header, name, field, separator, joint):
    def sign(at_s, headers, body):
        made = mac(utf8(TEXT), utf8(f"{at_s}{joint}"), body).hex()
        return {header: f"{name}={at_s}{separator}{field}={made}"}
    return sign


event = lambda number: (JSON, compact({"id": f"evt_{number}", "object": "event", "type": "invoice.paid", "data": {"object": {"id": "in_1", "type": "no"}}}))
sample("stripe", "", TEXT, timed("stripe-signature", "t", "v1", ",", "."), "invoice.paid", *same(event(1), event(2)), ids=["evt_1", "evt_1", "evt_2"])
paddle = lambda number: (JSON, compact({"event_id": f"evt_{number}", "event_type": "transaction.completed", "occurred_at": "2023-11-14T22:13:20Z", "notification_id": f"ntf_{number}"}))
sample("paddle", "", TEXT, timed("paddle-signature", "ts", "h1", ";", ":"), "transaction.completed", *same(paddle(1), paddle(2)), ids=["evt_1", "evt_1", "evt_2"])
invitee = lambda name: (JSON, compact({"event": "invitee.created", "created_at": "2023-11-14T22:13:20.000000Z", "payload": {"name": name}}))
sample("calendly", "", TEXT, timed("calendly-webhook-signature", "t", "v1", ",", "."), "invitee.created", *same(invitee("A"), invitee("B")))

# Shopify
shopify = over_body("x-shopify-hmac-sha256", "", b64)
order = lambda number, x="x-": ({**JSON, f"{x}shopify-webhook-id": f"b54557e4-bdd9-4b37-8a5f-bf7d70bcd04{number}", f"{x}shopify-topic": "orders/create"}, compact({"id": number}))
ids = ["b54557e4-bdd9-4b37-8a5f-bf7d70bcd041"] * 2 + ["b54557e4-bdd9-4b37-8a5f-bf7d70bcd042"]
sample("shopify", "webhooks", TEXT, shopify, "orders/create", *same(order(1), order(2)), ids=ids)
product = lambda number: ({**JSON, "shopify-webhook-id": f"b54557e4-bdd9-4b37-8a5f-bf7d70bcd04{number}"}, compact({"topic": "Product", "action": "update", "handle": "h"}))
sample("shopify", "events", TEXT, over_body("shopify-hmac-sha256", "", b64), "Product.update", *same(product(1), product(2)), ids=ids)


# `v0:time:body`
def versioned(header, time):
    return lambda at_s, headers, body: {time: str(at_s), header: "v0=" + mac(utf8(TEXT), utf8(f"v0:{at_s}:"), body).hex()}


slack = versioned("x-slack-signature", "x-slack-request-timestamp")
message = lambda number, more={}: ({**JSON, **more}, compact({"type": "event_callback", "event_id": f"Ev0{number}", "event": {"type": "app_mention", "text": "hi"}}))
sample("slack", "event", TEXT, slack, "app_mention", message(1), message(1, {"x-slack-retry-num": "1", "x-slack-retry-reason": "http_timeout"}), message(2), ids=["Ev01", "Ev01", "Ev02"])
command = lambda number: (FORM, f"token=t&team_id=T1&command=%2Fdeploy&text=now+please&trigger_id=133.7.{number}")
sample("slack", "command", TEXT, slack, "/deploy", *same(command(1), command(2)), ids=["133.7.1", "133.7.1", "133.7.2"])
action = lambda number: (FORM, "payload=%7B%22type%22%3A%22block_actions%22%2C%22trigger_id%22%3A%22133.7." + str(number) + "%22%7D")
sample("slack", "interaction", TEXT, slack, "block_actions", *same(action(1), action(2)), ids=["133.7.1", "133.7.1", "133.7.2"])
closed = lambda number: (FORM, "payload=%7B%22type%22%3A%22view_closed%22%2C%22view%22%3A%7B%22id%22%3A%22V" + str(number) + "%22%7D%7D")
sample("slack", "without id", TEXT, slack, "view_closed", *same(closed(1), closed(2)))
meeting = lambda number: (JSON, compact({"event": "meeting.started", "event_ts": 1_700_000_000_000 + number, "payload": {"object": {"id": "1"}}}))
sample("zoom", "", TEXT, versioned("x-zm-signature", "x-zm-request-timestamp"), "meeting.started", *same(meeting(1), meeting(2)))

# GitLab
issue = lambda number: ({**JSON, "x-gitlab-event": "Issue Hook", "webhook-id": f"f5e5f430-f57b-4e6e-9fac-d9128cd7232{number}", "idempotency-key": f"f5e5f430-f57b-4e6e-9fac-d9128cd7232{number}"}, compact({"object_kind": "issue", "event_type": "issue", "object_attributes": {"id": 301, "action": "open"}}))
ids = ["f5e5f430-f57b-4e6e-9fac-d9128cd72321"] * 2 + ["f5e5f430-f57b-4e6e-9fac-d9128cd72322"]
sample("gitlab", "issue", "whsec_" + b64(RAW), standard("webhook"), "issue.open", *same(issue(1), issue(2)), ids=ids)
group = lambda number: (issue(number)[0], compact({"event_name": "subgroup_create", "group_id": 9}))
sample("gitlab", "group", "whsec_" + b64(RAW), standard("webhook"), "subgroup_create", *same(group(1), group(2)), ids=ids)
token = lambda at_s, headers, body: {"x-gitlab-token": TEXT}
sample("gitlab-token", "17.4", TEXT, token, "issue.open", *same(issue(1), issue(2)), ids=ids)
older = lambda number: ({**JSON, "x-gitlab-event": "Push Hook", "x-gitlab-event-uuid": "13792a34-cac6-4fda-95a8-c58e00a3954e"}, compact({"object_kind": "push", "checkout_sha": str(number)}))
sample("gitlab-token", "older", TEXT, token, "push", *same(older(1), older(2)))

# HMAC of the body, and an id in a header
bitbucket = over_body("x-hub-signature", "sha256=", bytes.hex)
pushed = lambda number, attempt=1: ({**JSON, "x-event-key": "repo:push", "x-request-uuid": f"uuid-{number}", "x-attempt-number": str(attempt)}, compact({"push": {"changes": []}}))
sample("bitbucket", "cloud", TEXT, bitbucket, "repo:push", pushed(1), pushed(1, 2), pushed(2), ids=["uuid-1", "uuid-1", "uuid-2"])
changed = lambda number: ({**JSON, "x-event-key": "repo:refs_changed", "x-request-id": f"@4WFOZ{number}"}, compact({"eventKey": "repo:refs_changed"}))
sample("bitbucket", "data center", TEXT, bitbucket, "repo:refs_changed", *same(changed(1), changed(2)), ids=["@4WFOZ1", "@4WFOZ1", "@4WFOZ2"])
ticket = lambda number: ({**JSON, "linear-delivery": f"234d1a4e-b617-4388-90fe-adc3633d6b7{number}", "linear-event": "Issue"}, lambda at_s: compact({"action": "create", "type": "Issue", "data": {"id": "2174add1"}, "webhookTimestamp": at_s * 1000}))
sample("linear", "", TEXT, over_body("linear-signature", "", bytes.hex), "Issue.create", *same(ticket(1), ticket(2)), ids=["234d1a4e-b617-4388-90fe-adc3633d6b71"] * 2 + ["234d1a4e-b617-4388-90fe-adc3633d6b72"])
alert = lambda number: ({**JSON, "request-id": f"request-{number}", "sentry-hook-resource": "issue", "sentry-hook-timestamp": "1700000000"}, compact({"action": "created", "installation": {"uuid": "i"}, "data": {"issue": {"id": "1"}}}))
sample("sentry", "", TEXT, over_body("sentry-hook-signature", "", bytes.hex), "issue.created", *same(alert(1), alert(2)), ids=["request-1", "request-1", "request-2"])

# HMAC of the body, and an id in the body
incident = lambda number: ({**JSON, "x-webhook-id": f"webhook-{number}"}, compact({"event": {"id": f"01BZ{number}", "event_type": "incident.priority_updated", "data": {"id": "PGR0"}}}))
sample("pagerduty", "", TEXT, over_body("x-pagerduty-signature", "v1=", bytes.hex), "incident.priority_updated", *same(incident(1), incident(2)), ids=["01BZ1", "01BZ1", "01BZ2"])
answer = lambda number: (JSON, compact({"event_id": f"01H{number}", "event_type": "form_response", "form_response": {"token": "a3a1"}}))
sample("typeform", "", TEXT, over_body("typeform-signature", "sha256=", b64), "form_response", *same(answer(1), answer(2)), ids=["01H1", "01H1", "01H2"])
intercom = over_body("x-hub-signature", "sha1=", bytes.hex, "sha1")
notice = lambda number, attempts=1: (JSON, compact({"type": "notification_event", "id": f"notif_{number}", "topic": "conversation.user.created", "delivery_attempts": attempts}))
sample("intercom", "", TEXT, intercom, "conversation.user.created", notice(1), notice(1, 2), notice(2), ids=["notif_1", "notif_1", "notif_2"])
ping = lambda at: (JSON, compact({"type": "notification_event", "id": None, "topic": "ping", "created_at": at}))
sample("intercom", "ping", TEXT, intercom, "ping", *same(ping(1), ping(2)))
page = lambda number, attempt=1: (JSON, compact({"id": f"367cba44-b6f3-4c92-81e7-6a2e9659efd{number}", "type": "page.created", "entity": {"id": "no", "type": "page"}, "attempt_number": attempt}))
sample("notion", "", TEXT, over_body("x-notion-signature", "sha256=", bytes.hex), "page.created", page(1), page(1, 2), page(2), ids=["367cba44-b6f3-4c92-81e7-6a2e9659efd1"] * 2 + ["367cba44-b6f3-4c92-81e7-6a2e9659efd2"])

# HMAC of the body, and no id
meta = over_body("x-hub-signature-256", "sha256=", bytes.hex)
whatsapp = lambda number: (JSON, compact({"object": "whatsapp_business_account", "entry": [{"id": "1", "changes": [{"field": "messages", "value": {"id": number}}]}]}))
sample("meta", "whatsapp", TEXT, meta, "whatsapp_business_account.messages", *same(whatsapp(1), whatsapp(2)))
messenger = lambda number: (JSON, compact({"object": "page", "entry": [{"id": "1", "messaging": [{"message": {"mid": number}}]}]}))
sample("meta", "messenger", TEXT, meta, "page", *same(messenger(1), messenger(2)))
transfer = lambda number: (JSON, compact({"type": "balancePlatform.transfer.updated", "environment": "test", "data": {"id": "1W1UG35", "sequenceNumber": number}}))
sample("adyen-platform", "", RAW.hex().upper(), lambda at_s, headers, body: {"hmacsignature": b64(mac(RAW, body))}, "balancePlatform.transfer.updated", *same(transfer(1), transfer(2)))

# URL
square = lambda query: lambda at_s, headers, body: {"x-square-hmacsha256-signature": b64(mac(utf8(TEXT), utf8(URL + query), body))}
payment = lambda number: (JSON, compact({"merchant_id": "6SSW", "type": "payment.updated", "event_id": f"13b867cf-{number}", "data": {"type": "payment", "id": "hYy9"}}))
for variant, more, query in [("", {}, ""), ("query", {"query": "shop=1"}, "?shop=1"), ("query in the config", {"query": "shop=1", "public_url": URL + "?shop=1"}, "?shop=1")]:
    sample("square", variant, TEXT, square(query), "payment.updated", *same(payment(1), payment(2)), ids=["13b867cf-1", "13b867cf-1", "13b867cf-2"], **{"public_url": URL, **more})


def hubspot(url):
    def sign(at_s, headers, body):
        made = mac(utf8(TEXT), utf8("POST" + url), body, utf8(f"{at_s}000"))
        return {"x-hubspot-request-timestamp": f"{at_s}000", "x-hubspot-signature-v3": b64(made)}
    return sign


batch = lambda number, attempt=0: (JSON, compact([{"eventId": number, "subscriptionId": 12345, "portalId": 62515, "subscriptionType": "contact.creation", "attemptNumber": attempt}]))
sample("hubspot", "", TEXT, hubspot(URL), "contact.creation", batch(1), batch(1, 1), batch(2), public_url=URL, repeat_is_new=True)
sample("hubspot", "escapes", TEXT, hubspot(URL + "?a=x:/?@!$'()*,;&b=%20%25+%3D"), "contact.creation", batch(1), batch(1, 1), batch(2),
       public_url=URL, query="a=x%3A%2f%3F%40%21%24%27%28%29%2A%2C%3B&b=%20%25+%3D", repeat_is_new=True)

# Public keys
discord = lambda at_s, headers, body: {"x-signature-timestamp": str(at_s), "x-signature-ed25519": ED25519.sign(utf8(str(at_s)) + body).hex()}
keys = {"signing_secret": SEED.hex()}
slash = lambda number: (JSON, compact({"id": f"84648492347890073{number}", "type": 2, "token": "A_UNIQUE_TOKEN", "data": {"id": "no", "name": "cardsearch"}}))
sample("discord", "command", PUBLIC.hex(), discord, "cardsearch", *same(slash(1), slash(2)), ids=["846484923478900731"] * 2 + ["846484923478900732"], **keys)
button = lambda number: (JSON, compact({"id": f"84648492347890073{number}", "type": 3, "data": {"custom_id": "click_one", "component_type": 2}}))
sample("discord", "component", PUBLIC.hex(), discord, "click_one", *same(button(1), button(2)), ids=["846484923478900731"] * 2 + ["846484923478900732"], **keys)
joined = lambda name: (JSON, compact({"version": 1, "application_id": "1234560123453231555", "type": 1, "event": {"type": "APPLICATION_AUTHORIZED", "timestamp": "2024-10-18T14:42:53.064834", "data": {"user": name}}}))
sample("discord-events", "", PUBLIC.hex(), discord, "APPLICATION_AUTHORIZED", *same(joined("a"), joined("b")), **keys)

P256 = ec.derive_private_key(int.from_bytes(RAW, "big"), ec.SECP256R1())
PKCS8 = P256.private_bytes(serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
SPKI = P256.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
sendgrid = lambda at_s, headers, body: {
    "x-twilio-email-event-webhook-timestamp": str(at_s),
    "x-twilio-email-event-webhook-signature": b64(P256.sign(utf8(str(at_s)) + body, ec.ECDSA(hashes.SHA256()))),
}
mails = lambda number: (JSON, compact([{"event": "dropped", "sg_event_id": f"ZHJvcC0x{number}", "email": "a@example.com"}, {"event": "open", "sg_event_id": "x"}]) + "\r\n")
sample("sendgrid", "", b64(SPKI), sendgrid, "dropped", *same(mails(1), mails(2)), signing_secret=b64(PKCS8))


# Zendesk
def zendesk(at_s, headers, body):
    time = {AT_S: "2023-11-14T22:13:20Z", AT_S + 90: "2023-11-14T22:14:50Z", AT_S + 7: "2023-11-14T22:13:27Z"}[at_s]
    return {"x-zendesk-webhook-signature-timestamp": time, "x-zendesk-webhook-signature": b64(mac(utf8(TEXT), utf8(time), body))}


created = lambda number: ({**JSON, "x-zendesk-webhook-invocation-id": f"835020558{number}", "x-zendesk-webhook-id": "01F1"}, compact({"type": "zen:event-type:user.created", "id": "e", "detail": {"id": "6596848315901"}}))
sample("zendesk", "", TEXT, zendesk, "zen:event-type:user.created", *same(created(1), created(2)), ids=["8350205581", "8350205581", "8350205582"])



# While a secret is changed: a signature of each, and of other versions, the right one last.
wrong = mac(b"the other secret", b"")
rotating = [
    ("stripe", TEXT, {}, {}, event, lambda at_s, headers, body: {
        "stripe-signature": f"t={at_s},v1={wrong.hex()},v0=6ffbb5,v1={mac(utf8(TEXT), utf8(f'{at_s}.'), body).hex()}"}),
    ("paddle", TEXT, {}, {}, paddle, lambda at_s, headers, body: {
        "paddle-signature": f"ts={at_s};h1={wrong.hex()};h1={mac(utf8(TEXT), utf8(f'{at_s}:'), body).hex()}"}),
    ("calendly", TEXT, {}, {}, lambda number: invitee(str(number)), lambda at_s, headers, body: {
        "calendly-webhook-signature": f"t={at_s},v1={wrong.hex()},v1={mac(utf8(TEXT), utf8(f'{at_s}.'), body).hex()}"}),
    ("pagerduty", TEXT, {}, {}, incident, lambda at_s, headers, body: {
        "x-pagerduty-signature": f"v1={wrong.hex()},v1={mac(utf8(TEXT), body).hex()}"}),
]
for preset, family, kind in [("standard-webhooks", "webhook", "v1"), ("standard-webhooks-v1a", "webhook", "v1a"), ("svix", "svix", "v1"), ("gitlab", "webhook", "v1")]:
    def several(at_s, headers, body, family=family, kind=kind):
        made = standard(family, kind)(at_s, headers, body)
        other = "v1a" if kind == "v1" else "v1"
        made[family + "-signature"] = f"v1,{b64(wrong)} {other},{b64(wrong)} " + made[family + "-signature"]
        return made
    more = {"signing_secret": "whsk_" + b64(SEED)} if kind == "v1a" else {}
    secret = "whpk_" + b64(PUBLIC) if kind == "v1a" else "whsec_" + b64(RAW)
    rotating.append((preset, secret, {f"{family}-id": "msg_1"}, more, lambda number: (JSON, compact({"type": "invoice.paid", "object_kind": "invoice.paid", "n": number})), several))
for preset, secret, headers, more, body, sign in rotating:
    first, second = [({**headers, **body(number)[0]}, body(number)[1]) for number in (1, 2)]
    kind = {"paddle": "transaction.completed", "calendly": "invitee.created", "pagerduty": "incident.priority_updated"}.get(preset, "invoice.paid")
    ids = {"stripe": ["evt_1", "evt_1", "evt_2"], "paddle": ["evt_1", "evt_1", "evt_2"], "pagerduty": ["01BZ1", "01BZ1", "01BZ2"], "calendly": None}.get(preset, ["msg_1"] * 3)
    other = (({**second[0], f"{list(headers)[0]}": "msg_2"} if headers else second[0]), second[1])
    ids = ids[:2] + ["msg_2"] if headers else ids
    sample(preset, "rotation", secret, sign, kind, first, first, other, ids=ids, several_signatures=True, **more)


# Twilio, Mailgun and Adyen's payments have verifiers of their own.
def twilio(url):
    def sign(at_s, headers, body):
        pairs = parse_qsl(body.decode(), keep_blank_values=True) if headers["content-type"] == FORM["content-type"] else []
        message = url + "".join(name + value for name, value in sorted(set(pairs)))
        return {"x-twilio-signature": b64(mac(utf8(TEXT), utf8(message), algorithm="sha1"))}
    return sign


sms = lambda number: ({**FORM, "i-twilio-idempotency-token": f"token-{number}"}, f"MessageSid=SM{number}&SmsStatus=delivered&Body=caf%C3%A9+%26")
sample("twilio", "form", TEXT, twilio(URL), "delivered", *same(sms(1), sms(2)), ids=["token-1", "token-1", "token-2"], public_url=URL)
failed = lambda number: ({**JSON, "i-twilio-idempotency-token": f"token-{number}"}, compact({"type": "failed"}))
query = "bodySHA256=" + hashlib.sha256(utf8(failed(1)[1])).hexdigest()
sample("twilio", "json", TEXT, twilio(URL + "?" + query), "", *same(failed(1), failed(2)), ids=["token-1", "token-1", "token-2"], public_url=URL, query=query)


def mailgun(number):
    def body(at_s):
        token = str(number) * 50
        made = mac(utf8(TEXT), utf8(f"{AT_S}{token}")).hex()
        return compact({"signature": {"timestamp": str(AT_S), "token": token, "signature": made}, "event-data": {"event": "opened", "id": "Ase7"}})
    return (JSON, body)


sample("mailgun", "", TEXT, lambda at_s, headers, body: {}, "opened", *same(mailgun(1), mailgun(2)), ids=["1" * 50, "1" * 50, "2" * 50])


def adyen(number):
    item = {"pspReference": f"799{number}", "originalReference": "", "merchantAccountCode": "M", "merchantReference": "r", "amount": {"value": 1000, "currency": "EUR"}, "eventCode": "AUTHORISATION", "success": "true"}
    made = mac(RAW, utf8(f"799{number}::M:r:1000:EUR:AUTHORISATION:true"))
    return (JSON, compact({"live": "false", "notificationItems": [{"NotificationRequestItem": {**item, "additionalData": {"hmacSignature": b64(made)}}}]}))


sample("adyen", "", RAW.hex().upper(), lambda at_s, headers, body: {}, "AUTHORISATION", *same(adyen(1), adyen(2)), ids=["7991:AUTHORISATION:true"] * 2 + ["7992:AUTHORISATION:true"])

print(json.dumps(SAMPLES, indent=1, ensure_ascii=False))
