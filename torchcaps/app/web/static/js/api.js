// The JSON interface, and a channel that always asks about the latest state and never about a stale one.

export class Problem extends Error {}

async function request(path, options) {
  let answer;
  try {
    answer = await fetch(`/api/${path}`, options);
  } catch {
    throw new Problem("The server does not answer. Is “torchcaps serve” still running?");
  }
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Problem(sentence(body.error ?? `The server answered ${answer.status}.`));
  return body;
}

function sentence(text) {
  const capital = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(capital) ? capital : `${capital}.`;
}

export const get = (path) => request(path);

export const post = (path, body) =>
  request(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });

export const postFile = (path, file) =>
  request(path, { method: "POST", headers: { "content-type": file.type || "application/octet-stream" }, body: file });

// At most one request of a kind is under way; while it is, only the newest wish is kept.
export class Channel {
  constructor(path, onAnswer, onProblem) {
    Object.assign(this, { path, onAnswer, onProblem, busy: false, failed: false, wish: null });
  }

  async ask(body, context) {
    if (this.busy) {
      this.wish = [body, context];
      return;
    }
    this.busy = true;
    const began = performance.now();
    try {
      const answer = await post(this.path, body);
      if (this.failed) this.onProblem("");
      this.failed = false;
      this.onAnswer(answer, context, performance.now() - began);
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      this.failed = true;
      this.onProblem(problem.message);
    } finally {
      this.busy = false;
      if (this.wish) {
        const wish = this.wish;
        this.wish = null;
        this.ask(...wish);
      }
    }
  }
}
