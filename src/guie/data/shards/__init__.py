"""Store the images of a manifest in shards: plain tars with one Parquet index, on disk or in object storage.

The index is a manifest with more columns, which say where an image is. Its shards are in the same folder.
Every command takes it in place of a manifest, and finds an image by its address:
`shards/index.parquet/a/b.jpg`.

| module | content |
|---|---|
| `address` | names: an image's address, and object storage as a path |
| `index` | the index file; the lock of its folder while it is written |
| `cached` | mapped from the cache: the checked table of an index, and the places of its images |
| `storage` | byte ranges of a local file or an object, with retries and a bounded cache |
| `opening` | the bytes and the state of an image by its address; `guie.data.images` calls it |
"""
