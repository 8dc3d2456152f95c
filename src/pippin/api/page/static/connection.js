/** Whether the server answers: one banner as long as it does not, and a look every two seconds until it does. */

const PAUSE = 2000; // milliseconds

const waiting = [];
let looking = false;

const banner = () => document.getElementById("away");

/** The error that says that the server gives no answer; from now on the page looks for it by `probe()`. */
export function away(probe) {
  banner().hidden = false;
  if (!looking) look(probe);
  return Object.assign(new Error("The server can't be reached. Is it still running?"), { name: "Away" });
}

/** The server has answered. */
export function answered() {
  if (banner().hidden) return;
  banner().hidden = true;
  for (const resolve of waiting.splice(0)) resolve();
}

/** Resolves when the server answers again. */
export function back() {
  return new Promise((resolve) => waiting.push(resolve));
}

async function look(probe) {
  looking = true;
  while (!banner().hidden) {
    await new Promise((resolve) => setTimeout(resolve, PAUSE));
    try {
      await probe();
      answered();
    } catch {
      // It is still away.
    }
  }
  looking = false;
}
