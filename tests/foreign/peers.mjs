// The official JavaScript libraries as peers: signs and verifies with them, and with nothing of ours.
//
//   node peers.mjs DIRECTORY      where `npm ci` has put them
//
// Reads one JSON object a line, prints one for each, in order:
//
//   {"library", "do": "sign", "secret", "id", "body_base64", "now_s"}         → {"headers"}
//   {"library", "do": "verify", "secret", "headers", "body_base64", "now_s"}  → {"ok", "why"}
//
// A library that refuses gives {"ok": false, "why"} to both, with what it said. Header names are in lower case.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const directory = process.argv[2];
const require = createRequire(join(directory, "package.json"));
require("@shopify/shopify-api/adapters/node");
const { LogSeverity, shopifyApi } = require("@shopify/shopify-api");
const standardwebhooks = require("standardwebhooks");
const Stripe = require("stripe");
const svix = require("svix");
// A module that `require` can not load before Node 22.
const octokit = await import(pathToFileURL(join(directory, "node_modules/@octokit/webhooks-methods/dist-node/index.js")));

const stripe = new (Stripe.default ?? Stripe)("sk_test_none");

const libraries = {
  "@octokit/webhooks-methods": {
    // Takes text only.
    sign: async ({ secret, body }) => ({ "x-hub-signature-256": await octokit.sign(secret, body.toString()) }),
    verify: ({ secret, headers, body }) => octokit.verify(secret, body.toString(), headers["x-hub-signature-256"]),
  },
  "@shopify/shopify-api": {
    verify: async ({ secret, headers, body }) => {
      const shopify = shopifyApi({
        apiKey: "key",
        apiSecretKey: secret,
        apiVersion: headers["x-shopify-api-version"],
        hostName: "shop.example",
        isEmbeddedApp: false,
        logger: { level: LogSeverity.Error },
      });
      const rawRequest = { method: "POST", url: "/", headers };
      const result = await shopify.webhooks.validate({ rawBody: body.toString(), rawRequest });
      return result.valid || refuse(result.reason);
    },
  },
  standardwebhooks: {
    sign: ({ secret, id, body, now_s }) => ({
      "webhook-id": id,
      "webhook-timestamp": `${now_s}`,
      "webhook-signature": new standardwebhooks.Webhook(secret).sign(id, new Date(now_s * 1000), body),
    }),
    verify: ({ secret, headers, body }) => {
      new standardwebhooks.Webhook(secret).verify(body, headers);
      return true;
    },
  },
  stripe: {
    sign: ({ secret, body, now_s }) => ({
      "stripe-signature": stripe.webhooks.generateTestHeaderString({
        payload: body.toString(),
        secret,
        timestamp: now_s,
      }),
    }),
    verify: ({ secret, headers, body }) => {
      stripe.webhooks.constructEvent(body, headers["stripe-signature"], secret);
      return true;
    },
  },
  svix: {
    sign: ({ secret, id, body, now_s }) => ({
      "svix-id": id,
      "svix-timestamp": `${now_s}`,
      "svix-signature": new svix.Webhook(secret).sign(id, new Date(now_s * 1000), body),
    }),
    verify: ({ secret, headers, body }) => {
      new svix.Webhook(secret).verify(body, headers);
      return true;
    },
  },
};

function refuse(why) {
  throw new Error(why);
}

async function answer(question) {
  const asked = { ...question, body: Buffer.from(question.body_base64, "base64") };
  // The libraries read the clock themselves.
  Date.now = () => question.now_s * 1000;
  const library = libraries[question.library];
  try {
    if (question.do === "sign") {
      return { headers: await library.sign(asked) };
    }
    return (await library.verify(asked)) ? { ok: true } : { ok: false, why: "false" };
  } catch (error) {
    return { ok: false, why: `${error.name}: ${error.message}` };
  }
}

for (const line of readFileSync(0, "utf8").split("\n")) {
  if (line !== "") {
    process.stdout.write(`${JSON.stringify(await answer(JSON.parse(line)))}\n`);
  }
}
