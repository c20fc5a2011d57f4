"""The page of `ul studio`: load, learn, look, correct and export in a browser.

The server (`app`) answers requests with what lies in files: videos that were opened or uploaded
(`library`), run folders (`run_view`), and the state of learning (`jobs`). Learning happens in
processes of its own (`worker`, `camera_process`), which write run folders exactly as `ul learn`
and `ul watch` do, so a closed page or a stopped server loses nothing. The page itself is plain
HTML, CSS and JavaScript in `page/`.
"""
