/**
 * The one WebSocket of the page. It reconnects by itself, sooner at first and at most every eight
 * seconds, and counts a connection as dead that has said nothing for twelve seconds.
 */

const FIRST_WAIT = 500;
const LONGEST_WAIT = 8000;
const SILENCE = 12000;

export class Socket {
  /**
   * @param {string} url
   * @param {{onmessage: (message: any) => void, onstate: (state: "connecting"|"open"|"lost") => void}} handlers
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

  /** @param {any|ArrayBuffer} message @returns {boolean} Whether it could be sent. */
  send(message) {
    if (!this.socket || !this.open) return false;
    this.socket.send(message instanceof ArrayBuffer ? message : JSON.stringify(message));
    return true;
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
    this.timer = window.setTimeout(() => this.connect(), this.wait);
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
