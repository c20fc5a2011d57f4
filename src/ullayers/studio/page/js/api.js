/** Requests to the server. Every failure is an `ApiError` with one sentence for the user. */

export class ApiError extends Error {
  /**
   * @param {string} message
   * @param {number} status 0 if no answer came at all.
   */
  constructor(message, status) {
    super(message);
    this.status = status;
  }

  /** Whether the connection failed, so that the same request may work later. */
  get lost() {
    return this.status === 0;
  }
}

/**
 * @param {string} path
 * @param {RequestInit} [options]
 * @returns {Promise<Response>}
 */
async function request(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached.", 0);
  }
  if (!response.ok) throw new ApiError(await sentence(response), response.status);
  return response;
}

/** @param {Response} response */
async function sentence(response) {
  try {
    const { error } = await response.json();
    if (typeof error === "string") return error;
  } catch {
    // Not JSON: report the status.
  }
  return `The server answered ${response.status}.`;
}

/** @param {string} path @param {RequestInit} [options] */
async function json(path, options) {
  return (await request(path, options)).json();
}

/** @param {string} path @param {any} [body] */
function post(path, body) {
  const headers = { "Content-Type": "application/json" };
  return json(path, { method: "POST", headers, body: JSON.stringify(body ?? {}) });
}

const part = encodeURIComponent;

/** Corrections change tracks and outlines, so none may come from the browser's cache. */
const FRESH = /** @type {const} */ ({ cache: "no-store" });

/** @param {string} path */
async function bytes(path) {
  return (await request(path, FRESH)).arrayBuffer();
}

/** @param {string} id */
const run = (id) => `/api/runs/${part(id)}`;

export const api = {
  state: () => json("/api/state"),
  demo: () => post("/api/demo"),
  /** @param {string} id */
  deleteSource: (id) => request(`/api/sources/${part(id)}`, { method: "DELETE" }),
  /** @param {any} body */
  startRun: (body) => post("/api/runs", body),
  /** @param {string} id */
  stopRun: (id) => post(`${run(id)}/stop`),
  /** @param {string} id */
  resumeRun: (id) => post(`${run(id)}/resume`),
  /** @param {string} id */
  deleteRun: (id) => request(run(id), { method: "DELETE" }),
  /** @param {string} id */
  details: (id) => /** @type {Promise<import("./store.js").Details>} */ (json(run(id))),
  /** @param {string} id @param {number} after */
  metrics: (id, after) => json(`${run(id)}/metrics?after=${after}`),
  /** @param {string} id */
  live: (id) => json(`${run(id)}/live`),
  /** @param {string} id @param {string} sequence */
  overview: (id, sequence) => json(`${run(id)}/overview/${part(sequence)}`, FRESH),
  /** @param {string} id @param {string} sequence @param {string[]} columns Empty for all. */
  sample: (id, sequence, columns) =>
    bytes(`${run(id)}/sample/${part(sequence)}?columns=${columns}`),
  /**
   * @param {string} id
   * @param {string} sequence
   * @param {number} first
   * @param {number} last
   * @param {string[]} columns Empty for all.
   */
  rows: (id, sequence, first, last, columns) =>
    bytes(`${run(id)}/rows/${part(sequence)}?first=${first}&last=${last}&columns=${columns}`),
  /**
   * @param {string} id
   * @param {string} sequence
   * @param {number} first
   * @param {number} last
   * @param {number} step
   * @param {string[]} columns
   */
  extremes: (id, sequence, first, last, step, columns) =>
    bytes(
      `${run(id)}/extremes/${part(sequence)}?first=${first}&last=${last}&step=${step}&columns=${columns}`,
    ),
  /**
   * @param {string} id
   * @param {string} sequence
   * @param {number} first
   * @param {number} last
   */
  outlines: (id, sequence, first, last) =>
    json(`${run(id)}/outlines/${part(sequence)}?first=${first}&last=${last}`, FRESH),
  /** @param {string} id */
  corrections: (id) => json(`${run(id)}/corrections`),
  /** @param {string} id @param {import("./store.js").Correction} correction */
  correct: (id, correction) => post(`${run(id)}/corrections`, correction),
  /** @param {string} id */
  undo: (id) => post(`${run(id)}/corrections/undo`),
  /** @param {string} id */
  redo: (id) => post(`${run(id)}/corrections/redo`),
  /** @param {string} id */
  relearn: (id) => post(`${run(id)}/relearn`),
  /** @param {string} id @param {string} other */
  changes: (id, other) => json(`${run(id)}/changes?with=${part(other)}`),
  /** @param {string} id @param {any} body */
  export: (id, body) => post(`${run(id)}/export`, body),
  /** @param {string} id @param {string} name @param {boolean} [download] */
  fileUrl: (id, name, download = false) =>
    `${run(id)}/file/${part(name)}${download ? "?download=1" : ""}`,
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
    const answer = await request(`/api/sources/${part(source)}/frame/${frame}?${query}`, {
      signal,
    });
    return { blob: await answer.blob(), number: Number(answer.headers.get("x-frame") ?? frame) };
  },
  /** @param {string} url @param {AbortSignal} signal */
  picture: async (url, signal) => (await request(url, { signal })).blob(),
};

/**
 * Send a file; XMLHttpRequest, because fetch does not tell how much has been sent.
 *
 * @param {File} file
 * @param {(share: number) => void} onprogress
 * @returns {{done: Promise<import("./store.js").Source>, cancel: () => void}}
 */
export function upload(file, onprogress) {
  const xhr = new XMLHttpRequest();
  const done = new Promise((resolve, reject) => {
    xhr.open("POST", `/api/uploads?name=${part(file.name)}`);
    xhr.responseType = "json";
    xhr.upload.onprogress = (event) => onprogress(event.total ? event.loaded / event.total : 0);
    xhr.onload = () => {
      if (xhr.status < 300) resolve(xhr.response);
      else
        reject(
          new ApiError(xhr.response?.error ?? `The server answered ${xhr.status}.`, xhr.status),
        );
    };
    xhr.onerror = () => reject(new ApiError("The connection was lost while the file was sent.", 0));
    xhr.onabort = () => reject(new ApiError("Cancelled.", 0));
    xhr.send(file);
  });
  return { done, cancel: () => xhr.abort() };
}
