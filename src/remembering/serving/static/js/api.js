/** The HTTP API of the service. Every failure is a `Problem` with a message for people. */

import { sentence } from "./format.js";

const TOKEN_KEY = "remembering-token";
const RETRIES = 3;

export class Problem extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

let askForToken = async () => null;
let asking = null; // One question at a time, however many requests need the token.

/** Set the function that obtains a token from the user; it resolves to null if there is none. */
export function setTokenPrompt(prompt) {
  askForToken = prompt;
}

function headers(body) {
  const token = sessionStorage.getItem(TOKEN_KEY);
  return {
    Accept: "application/json",
    "X-Remembering": "1",
    ...(body === undefined ? {} : { "Content-Type": "application/json" }),
    ...(token ? { Authorization: `Bearer ${token}` } : {}),
  };
}

async function toProblem(response) {
  let document = {};
  if (/json/.test(response.headers.get("Content-Type") ?? "")) {
    document = await response.json().catch(() => ({}));
  }
  const detail = typeof document.detail === "string" ? document.detail : document.title;
  const fallback = {
    413: "These pictures are too large to send. Remove some and try again.",
    429: "Too much is going on at once. Try again in a moment.",
    503: "The server is busy. Try again in a moment.",
  }[response.status];
  return new Problem(response.status,
    sentence(detail || fallback || `The server answered with error ${response.status}.`));
}

const pause = (seconds) => new Promise((done) => { setTimeout(done, seconds * 1000); });

async function send(method, path, body, attempt = 0) {
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: headers(body),
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
    });
  } catch {
    throw new Problem(0, "The server does not answer. Check that it is still running.");
  }
  if (response.ok) return response;
  if (response.status === 401) {
    asking ??= askForToken(sessionStorage.getItem(TOKEN_KEY) !== null);
    const token = await asking;
    asking = null;
    if (token === null) throw new Problem(401, "This needs the server's token.");
    sessionStorage.setItem(TOKEN_KEY, token);
    return send(method, path, body, attempt);
  }
  if (response.status === 503 && attempt < RETRIES) {
    await pause(Math.min(Number(response.headers.get("Retry-After")) || 1, 5));
    return send(method, path, body, attempt + 1);
  }
  throw await toProblem(response);
}

async function json(method, path, body) {
  const response = await send(method, path, body);
  return response.status === 204 ? null : response.json();
}

const part = encodeURIComponent;

export const api = {
  model: () => json("GET", "v1/model"),
  predict: (images) => json("POST", "v1/predict", { images, top_k: 5, false_alarm_rate: 0.05 }),
  learn: async (name, classes) => (await json("POST", "v1/learn", { name, classes })).job,
  add: async (task, classes) => (await json("POST", `v1/tasks/${part(task)}/classes`, { classes })).job,
  jobs: async () => (await json("GET", "v1/jobs")).jobs,
  job: (id) => json("GET", `v1/jobs/${part(id)}`),
  cancel: (id) => json("DELETE", `v1/jobs/${part(id)}`),
  forget: (name) => json("DELETE", `v1/tasks/${part(name)}`),
  undo: () => json("POST", "v1/undo", {}),
  renameTask: (name, to) => json("POST", `v1/tasks/${part(name)}/rename`, { name: to }),
  renameClass: (task, label, to) =>
    json("POST", "v1/classes/rename", { task, label, new_label: to }),
  samples: async () => (await json("GET", "v1/samples")).sets,
  sample: async (set, label, count) =>
    (await json("GET", `v1/samples/${part(set)}/${part(label)}?count=${count}`)).images,
  download: async () => (await send("GET", "v1/model/download")).blob(),
};
