/** What the page knows about the model and the running job; views subscribe to changes. */

import { api } from "./api.js";

const POLL_MS = 700;
const ACTIVE = new Set(["queued", "running"]);

export const store = { model: null, job: null };
const listeners = new Set();
const finished = new Set();

export function subscribe(listener) {
  listeners.add(listener);
}

/** Call `listener(job)` when a job ends, however it ends. */
export function onJobEnd(listener) {
  finished.add(listener);
}

function notify() {
  for (const listener of listeners) listener(store);
}

export const isActive = (job) => job !== null && ACTIVE.has(job.status);

export async function refresh() {
  store.model = await api.model();
  notify();
}

let following = false;

/** Show a job and poll it until it ends. */
export async function follow(job) {
  store.job = job;
  notify();
  if (following) return;
  following = true;
  try {
    while (isActive(store.job)) {
      await new Promise((done) => { setTimeout(done, POLL_MS); });
      try {
        store.job = await api.job(store.job.id);
      } catch (problem) {
        if (problem.status !== 0 && problem.status !== 503) throw problem;
        continue; // The server may be restarting; it resumes the job.
      }
      notify();
    }
    await refresh();
  } catch (problem) {
    store.job = { ...store.job, status: "failed", error: problem.message };
  } finally {
    following = false;
  }
  for (const listener of finished) listener(store.job);
  notify();
}

/** Pick up a job that was started before the page was loaded. */
export async function followRunning() {
  const running = (await api.jobs()).find(isActive);
  if (running) follow(running);
  return running ?? null;
}
