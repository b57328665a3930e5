// Questions to an engine, and a channel that always asks about the latest state and never about a stale one.

// Something that went wrong and that the person at the page is told, in one sentence.
export class Problem extends Error {}

export function sentence(text) {
  const capital = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(capital) ? capital : `${capital}.`;
}

// At most one question of a kind is under way; while it is, only the newest wish is kept.
export class Channel {
  constructor(answerTo, onAnswer, onProblem) {
    Object.assign(this, { answerTo, onAnswer, onProblem, busy: false, failed: false, wish: null });
  }

  async ask(question) {
    if (this.busy) {
      this.wish = { question };
      return;
    }
    this.busy = true;
    const began = performance.now();
    try {
      const answer = await this.answerTo(question);
      if (this.failed) this.onProblem("");
      this.failed = false;
      this.onAnswer(answer, question, performance.now() - began);
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      this.failed = true;
      this.onProblem(problem.message);
    } finally {
      this.busy = false;
      if (this.wish) {
        const { question: next } = this.wish;
        this.wish = null;
        this.ask(next);
      }
    }
  }
}
