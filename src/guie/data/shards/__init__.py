"""Store the images of a manifest in shards: plain tars with one Parquet index, on disk or in object storage.

The index is a manifest with more columns, which say where an image is. Its shards are in the same folder.
Every command takes it in place of a manifest.

| module | content |
|---|---|
| `storage` | objects as paths; byte ranges of a file or an object, with retries and a bounded cache |
| `index` | the index file, the lock of its folder while it is written, and what the cache holds of it |
| `opening` | the bytes and the state of an image by its address; `guie.data.images` calls it |
"""
