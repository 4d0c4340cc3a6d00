"""The folder of an archive: its manifests, its messages and their integrity. Writing one is a job."""
