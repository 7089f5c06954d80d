"""The official Python libraries as peers: signs and verifies with them, and with nothing of ours.

Reads one JSON object a line, prints one for each, in order:

  {"library", "do": "sign", "secret", "id", "body_base64", "now_s"}         -> {"headers"}
  {"library", "do": "verify", "secret", "headers", "body_base64", "now_s"}  -> {"ok", "why"}

A library that refuses gives {"ok": false, "why"} to both, with what it said. Header names are in lower case.
"""

import base64
import datetime
import json
import sys
import time

import slack_sdk.signature
import standardwebhooks.webhooks
import stripe
import svix.webhooks

now_s = 0


class SetDatetime(datetime.datetime):
    """The clock of `standardwebhooks`, and so of `svix`, which reads it itself."""

    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(now_s, tz=tz)


class SlackClock(slack_sdk.signature.Clock):
    def now(self):
        return now_s


standardwebhooks.webhooks.datetime = SetDatetime
time.time = lambda: now_s


def standard(prefix, webhook):
    """Two libraries with one interface, and the header names of each."""

    def sign(asked):
        # Whatever its zone, `sign` takes the time for UTC.
        signed_at = datetime.datetime.fromtimestamp(now_s, tz=datetime.timezone.utc)
        return {
            f"{prefix}-id": asked["id"],
            f"{prefix}-timestamp": str(now_s),
            f"{prefix}-signature": webhook(asked["secret"]).sign(asked["id"], signed_at, asked["body"].decode()),
        }

    def verify(asked):
        webhook(asked["secret"]).verify(asked["body"], asked["headers"])
        return True

    return {"sign": sign, "verify": verify}


def slack_sign(asked):
    verifier = slack_sdk.signature.SignatureVerifier(asked["secret"])
    return {
        "x-slack-request-timestamp": str(now_s),
        "x-slack-signature": verifier.generate_signature(timestamp=str(now_s), body=asked["body"]),
    }


def slack_verify(asked):
    verifier = slack_sdk.signature.SignatureVerifier(asked["secret"], SlackClock())
    return verifier.is_valid_request(asked["body"], asked["headers"])


def stripe_sign(asked):
    header = stripe.WebhookSignature.generate_signature_header(asked["body"].decode(), asked["secret"], now_s)
    return {"stripe-signature": header}


def stripe_verify(asked):
    stripe.Webhook.construct_event(asked["body"], asked["headers"].get("stripe-signature"), asked["secret"])
    return True


LIBRARIES = {
    "slack_sdk": {"sign": slack_sign, "verify": slack_verify},
    "standardwebhooks": standard("webhook", standardwebhooks.webhooks.Webhook),
    "stripe": {"sign": stripe_sign, "verify": stripe_verify},
    "svix": standard("svix", svix.webhooks.Webhook),
}


def answer(question):
    global now_s
    now_s = question["now_s"]
    asked = dict(question, body=base64.b64decode(question["body_base64"]))
    library = LIBRARIES[question["library"]]
    try:
        if question["do"] == "sign":
            return {"headers": library["sign"](asked)}
        return {"ok": True} if library["verify"](asked) else {"ok": False, "why": "false"}
    # Whatever is raised refuses the request.
    except Exception as error:
        return {"ok": False, "why": f"{type(error).__name__}: {error}"}


def main():
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))))


if __name__ == "__main__":
    main()
