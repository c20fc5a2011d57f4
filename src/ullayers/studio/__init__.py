"""The page of `ul studio`: load, train, inspect, correct and export in a browser.

The server (`server`, `socket`, `studio`) answers requests from files: videos that were opened or
uploaded (`files`), run folders (`tables`, `editing`), and the state of training (`jobs`). Training
runs in separate processes (`worker`, `camera_process`), which write run folders exactly as `ul
learn` and `ul watch` do, so a closed page or a stopped server loses nothing. The page itself is
plain HTML, CSS and JavaScript in `page/`.
"""
