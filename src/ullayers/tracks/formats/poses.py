"""Tracks for programs that read poses, as a pose of one point: movement, SLEAP and NWB."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ullayers.files import replacing_path
from ullayers.tracks.formats.packages import load
from ullayers.tracks.reading import Floats, Track
from ullayers.tracks.tracked_video import TrackedVideo, object_name, on_frames, positions

SOFTWARE = "ullayers"
POINT = "centroid"
UNKNOWN_START = datetime(1970, 1, 1, tzinfo=UTC)  # NWB requires a date of the recording


def write_movement(videos: Sequence[TrackedVideo], path: Path) -> None:
    """Write a netCDF file with the dataset of the package movement."""
    [load_poses] = load("movement", "movement.io.load_poses")
    [video] = videos
    frames = video.frames
    places, confidences = positions(video, frames)  # (time, individuals, space)
    dataset = load_poses.from_numpy(
        position_array=places.transpose(0, 2, 1)[:, :, None],
        confidence_array=confidences[:, None],
        individual_names=[object_name(track) for track in video.tracks],
        keypoint_names=[POINT],
        fps=video.fps,
        source_software=SOFTWARE,
    )
    # Frames of a part of the video, or every n-th frame, are not at 0, 1, 2, ... / fps.
    dataset = dataset.assign_coords(time=_times(video))
    with replacing_path(path) as partial:
        dataset.to_netcdf(partial)


def _times(video: TrackedVideo) -> Floats:
    """Return the time of each frame; frames without objects have their number / fps."""
    frames = video.frames
    times = frames / video.fps
    for track in video.tracks:
        own = on_frames(track, track.time, frames)
        times = np.where(np.isnan(own), times, own)
    return times


def write_sleap(videos: Sequence[TrackedVideo], path: Path) -> None:
    """Write a .slp file with all videos; an object has the same track in all of them."""
    [sleap] = load("sleap", "sleap_io")
    skeleton = sleap.Skeleton([POINT], name=SOFTWARE)
    numbers = sorted({track.object for video in videos for track in video.tracks})
    identities = {number: sleap.Track(f"object_{number}") for number in numbers}
    labels = sleap.Labels(skeletons=[skeleton], tracks=list(identities.values()))
    for video in videos:
        shape = (int(video.frames[-1]) + 1, video.height, video.width, 3)
        file = sleap.Video(video.name, backend_metadata={"shape": shape}, open_backend=False)
        labels.videos.append(file)
        instances: dict[int, list[Any]] = {}
        for track in video.tracks:
            known = np.isfinite(track.x_px + track.y_px)
            columns = tuple(
                column[known] for column in (track.frame, track.x_px, track.y_px, track.confidence)
            )
            for frame, x, y, confidence in zip(*(c.tolist() for c in columns), strict=True):
                instance = sleap.PredictedInstance.from_numpy(
                    np.array([[x, y]]),
                    skeleton,
                    point_scores=np.array([confidence]),
                    score=confidence,
                    track=identities[track.object],
                )
                instances.setdefault(frame, []).append(instance)
        labels.labeled_frames += [
            sleap.LabeledFrame(video=file, frame_idx=frame, instances=instances[frame])
            for frame in sorted(instances)
        ]
    with replacing_path(path) as partial:
        sleap.save_slp(labels, str(partial), verbose=False)


def write_nwb(videos: Sequence[TrackedVideo], path: Path) -> None:
    """Write an NWB file with the extension ndx-pose: one `PoseEstimation` per object."""
    pynwb, ndx_pose = load("nwb", "pynwb", "ndx_pose")
    [video] = videos
    file = pynwb.NWBFile(
        session_description=f"Positions in the video {video.name}. The date is not known.",
        identifier=video.name,
        session_start_time=UNKNOWN_START,
    )
    source = pynwb.image.ImageSeries(
        name="video",
        external_file=[video.name],
        format="external",
        starting_frame=[0],
        rate=video.fps,
        num_samples=int(video.frames[-1]) + 1,
        dimension=[video.width, video.height],
    )
    file.add_acquisition(source)
    behavior = file.create_processing_module("behavior", "Positions of moving objects")
    skeletons = [
        ndx_pose.Skeleton(name=object_name(track), nodes=[POINT]) for track in video.tracks
    ]
    behavior.add(ndx_pose.Skeletons(skeletons=skeletons))
    for track, skeleton in zip(video.tracks, skeletons, strict=True):
        estimation = ndx_pose.PoseEstimation(
            name=object_name(track),
            pose_estimation_series=[_nwb_series(ndx_pose, track)],
            description=f"Object {track.object}, found without labels",
            source_video=source,
            scorer=SOFTWARE,
            source_software=SOFTWARE,
            skeleton=skeleton,
        )
        behavior.add(estimation)
    with replacing_path(path) as partial, pynwb.NWBHDF5IO(str(partial), "w") as io:
        io.write(file)


def _nwb_series(ndx_pose: Any, track: Track) -> Any:
    return ndx_pose.PoseEstimationSeries(
        name=POINT,
        description=f"Centroid of object {track.object}",
        data=np.stack([track.x_px, track.y_px], 1),
        unit="pixels",
        reference_frame="(0, 0) is the top left corner of the frame",
        timestamps=track.time,
        confidence=track.confidence,
        confidence_definition="From 0 to 1; below 0.5, the position is unreliable",
    )
