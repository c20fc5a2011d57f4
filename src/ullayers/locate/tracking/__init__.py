"""Several objects: blobs, tracks, their selection and their identities, offline and live."""
