"""What is special about cameras: their motion, and reading those that PyAV cannot read.

`motion` estimates the path of a moving camera in a clip and the background along it, `following`
uses it to crop a square around the moving object, and `capture` reads cameras through OpenCV.
"""
