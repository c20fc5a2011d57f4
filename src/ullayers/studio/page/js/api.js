/** Requests to the server, whose errors say one sentence to the user, and its WebSocket. */

/** @import {Correction, Details, Run, Source} from "./store.js" */

/** @typedef {"stop"|"resume"|"relearn"|"corrections/undo"|"corrections/redo"} Action */

const FIRST_WAIT = 500; // ms until the socket connects again
const LONGEST_WAIT = 8000;
const SILENCE = 12000; // ms; a connection that has said nothing for longer is dead

export class ApiError extends Error {
  /** @param {string} message @param {number} status 0 if no answer came: it may work later. */
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** @param {string} path @param {RequestInit} [options] @returns {Promise<Response>} */
async function request(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached.", 0);
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => null); // not JSON: report the status
  throw failure(answer, response.status);
}

/** @param {any} answer @param {number} status */
function failure(answer, status) {
  const said = typeof answer?.error === "string" ? answer.error : `The server answered ${status}.`;
  return new ApiError(said, status);
}

/** @param {string} path @param {RequestInit} [options] */
async function json(path, options) {
  return (await request(path, options)).json();
}

/** @param {string} path @param {any} [body] */
function post(path, body = {}) {
  const headers = { "Content-Type": "application/json" };
  return json(path, { method: "POST", headers, body: JSON.stringify(body) });
}

const part = encodeURIComponent;

/** @param {string} id */
const run = (id) => `/api/runs/${part(id)}`;

/** Corrections change tracks and outlines, so none may come from the browser's cache. */
const FRESH = /** @type {const} */ ({ cache: "no-store" });

export const api = {
  state: () => json("/api/state"),
  demo: () => post("/api/demo"),
  /** @param {string} id */
  deleteSource: (id) => request(`/api/sources/${part(id)}`, { method: "DELETE" }),
  /** @param {any} body @returns {Promise<Run>} */
  startRun: (body) => post("/api/runs", body),
  /** @param {string} id @param {Action} what */
  act: (id, what) => post(`${run(id)}/${what}`),
  /** @param {string} id */
  deleteRun: (id) => request(run(id), { method: "DELETE" }),
  /** @param {string} id @returns {Promise<Details>} */
  details: (id) => json(run(id)),
  /** @param {string} id @param {string} sequence */
  overview: (id, sequence) => json(`${run(id)}/overview/${part(sequence)}`, FRESH),
  /** @param {string} id @param {string} sequence @param {number} first @param {number} last */
  outlines: (id, sequence, first, last) =>
    json(`${run(id)}/outlines/${part(sequence)}?first=${first}&last=${last}`, FRESH),
  /**
   * @param {string} id
   * @param {"sample"|"rows"|"extremes"} what
   * @param {string} sequence
   * @param {Record<string, any>} query First and last frame, and columns: none for all.
   */
  table: async (id, what, sequence, query) => {
    const path = `${run(id)}/${what}/${part(sequence)}?${new URLSearchParams(query)}`;
    return (await request(path, FRESH)).arrayBuffer();
  },
  /** @param {string} id */
  corrections: (id) => json(`${run(id)}/corrections`),
  /** @param {string} id @param {Correction} correction */
  correct: (id, correction) => post(`${run(id)}/corrections`, correction),
  /** @param {string} id @param {string} other @returns {Promise<{sentence: string}>} */
  changes: (id, other) => json(`${run(id)}/changes?with=${part(other)}`),
  /** @param {string} id @param {any} body */
  export: (id, body) => post(`${run(id)}/export`, body),
  /** @param {string} id @param {string} name */
  fileUrl: (id, name) => `${run(id)}/file/${part(name)}`,
  /**
   * The picture of a frame, and its number.
   *
   * @param {string} source
   * @param {number} frame
   * @param {number} width 0 for the video's own.
   * @param {boolean} near Whether a frame before it will do, if it comes sooner.
   * @param {AbortSignal} signal
   */
  frame: async (source, frame, width, near, signal) => {
    const query = [width ? `width=${width}` : "", near ? "near=1" : ""].filter(Boolean).join("&");
    const path = `/api/sources/${part(source)}/frame/${frame}?${query}`;
    const answer = await request(path, { signal });
    return { blob: await answer.blob(), number: Number(answer.headers.get("x-frame") ?? frame) };
  },
  /** @param {string} url */
  picture: async (url) => (await request(url)).blob(),
};

/**
 * Send a file; XMLHttpRequest, because fetch does not tell how much has been sent.
 *
 * @param {File} file
 * @param {(share: number) => void} onprogress
 * @returns {{done: Promise<Source>, cancel: () => void}}
 */
export function upload(file, onprogress) {
  const xhr = new XMLHttpRequest();
  const done = new Promise((resolve, reject) => {
    xhr.open("POST", `/api/uploads?name=${part(file.name)}`);
    xhr.responseType = "json";
    xhr.upload.onprogress = (event) => onprogress(event.total ? event.loaded / event.total : 0);
    xhr.onload = () =>
      xhr.status < 300 ? resolve(xhr.response) : reject(failure(xhr.response, xhr.status));
    xhr.onerror = () => reject(new ApiError("The connection was lost while the file was sent.", 0));
    xhr.onabort = () => reject(new ApiError("Cancelled.", 0));
    xhr.send(file);
  });
  return { done, cancel: () => xhr.abort() };
}

/** The one WebSocket of the page. It reconnects by itself, sooner at first and then more seldom. */
export class Socket {
  /**
   * @param {string} url
   * @param {{onmessage: (message: any) => void, onstate: (state: "open"|"lost") => void}} handlers
   */
  constructor(url, { onmessage, onstate }) {
    this.url = url;
    this.onmessage = onmessage;
    this.onstate = onstate;
    this.wait = FIRST_WAIT;
    /** @type {WebSocket|null} */
    this.socket = null;
    this.heard = 0;
    this.timer = 0;
    setInterval(() => this.check(), 1000);
    // Reconnect at once when the page is shown again or the network is back.
    addEventListener("online", () => this.connectNow());
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.connectNow();
    });
    this.connect();
  }

  get open() {
    return this.socket?.readyState === WebSocket.OPEN;
  }

  /** Bytes that wait to be sent; the camera sends nothing while some do. */
  get waiting() {
    return this.socket?.bufferedAmount ?? 0;
  }

  /** @param {any|ArrayBuffer} message It is dropped if there is no connection. */
  send(message) {
    if (this.open)
      this.socket?.send(message instanceof ArrayBuffer ? message : JSON.stringify(message));
  }

  connectNow() {
    if (this.socket) return;
    clearTimeout(this.timer);
    this.connect();
  }

  connect() {
    const socket = new WebSocket(this.url);
    this.socket = socket;
    this.heard = performance.now();
    socket.onopen = () => {
      this.wait = FIRST_WAIT;
      this.heard = performance.now();
      this.onstate("open");
    };
    socket.onmessage = (event) => {
      this.heard = performance.now();
      this.onmessage(JSON.parse(event.data));
    };
    socket.onclose = () => this.lose(socket);
  }

  /** @param {WebSocket} socket */
  lose(socket) {
    if (socket !== this.socket) return;
    this.socket = null;
    this.onstate("lost");
    this.timer = setTimeout(() => this.connect(), this.wait);
    this.wait = Math.min(LONGEST_WAIT, 2 * this.wait);
  }

  check() {
    if (!this.socket || performance.now() - this.heard < SILENCE) return;
    const dead = this.socket;
    // A dead connection may never say that it closed, so its end is not waited for.
    this.lose(dead);
    dead.close();
  }
}
