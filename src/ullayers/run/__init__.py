"""One run, from its inputs to its report.

`learn` is what users of Python call. `plan` chooses what a run does or loads its folder (`folder`);
`pipeline` follows it from the first frame to the report: read, train, locate (`apply`), write
(`write`, `summary`, `reports`). The command, the studio and notebooks iterate over its events, show
them (`progress`) and stop it (`stopping`). `watch` learns while frames arrive; `fleet` and `parts`
apply a run to thousands of videos.
"""
