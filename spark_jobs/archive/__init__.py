"""The folder of an archive: manifests, messages and their integrity. Writing one is a job."""
