"""The Cloud Storage emulator with what tensorstore and gcsfs rely on besides.

  python tests/gcs_server.py PORT

That is an object's generation in the answer to a download, the precondition ifGenerationMatch, and
the last byte of an upload whose content ends with a carriage return, which the emulator drops.
"""

import http
import http.server
import json
import logging
import sys
import threading

from gcp_storage_emulator import storage as store
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import objects

_request = threading.local()


class PreconditionFailed(Exception):
  """The object is not of the generation that a request asked for."""


def with_generation(download):
  def answer(request, response, storage, *args, **kwargs):
    download(request, response, storage, *args, **kwargs)
    if response.status in (http.HTTPStatus.OK, http.HTTPStatus.PARTIAL_CONTENT):
      names = request.params["bucket_name"], request.params["object_id"]
      response["x-goog-generation"] = storage.get_file_obj(*names)["generation"]

  return answer


def with_precondition(insert):
  def answer(request, response, storage, *args, **kwargs):
    _request.generation = request.query.get("ifGenerationMatch", [None])[0]
    try:
      insert(request, response, storage, *args, **kwargs)
    except PreconditionFailed:
      response.status = http.HTTPStatus.PRECONDITION_FAILED
    finally:
      _request.generation = None

  return answer


def create_file(self, bucket, name, *args, create=store.Storage.create_file, **kwargs):
  wanted = getattr(_request, "generation", None)
  if wanted is not None:
    try:
      generation = self.get_file_obj(bucket, name)["generation"]
    except NotFound:
      generation = "0"
    if generation != wanted:
      raise PreconditionFailed
  create(self, bucket, name, *args, **kwargs)


objects.download = with_generation(objects.download)
objects.insert = with_precondition(objects.insert)
objects.upload_partial = with_precondition(objects.upload_partial)
store.Storage.create_file = create_file

from gcp_storage_emulator import server  # noqa: E402  its table has the functions above

read_data = server._read_data


def read_whole_data(handler, query):
  """As the emulator's, which reads an upload of two parts as an e-mail."""
  content_type = handler.headers.get("Content-Type", "")
  if not content_type.startswith("multipart/related"):
    return read_data(handler, query)
  boundary = b"--" + content_type.partition("boundary=")[2].strip("'\"").encode()
  body = server._decode_raw_data(server._read_raw_data(handler), handler)
  end = b"\r\n" if body.startswith(boundary + b"\r\n") else b"\n"
  meta, media, *_ = body.split(end + boundary)
  header, content = media.split(2 * end, 1)
  return {
    "meta": json.loads(meta.split(2 * end, 1)[1]),
    "content": content,
    "content-type": header.partition(b":")[2].strip().decode(),
  }


server._read_data = read_whole_data
# A connection beyond the queue, of 5, is dropped: its client sends it again after a second or more.
http.server.HTTPServer.request_queue_size = 128

if __name__ == "__main__":
  logging.disable(logging.CRITICAL)
  port = int(sys.argv[1])
  server.create_server("127.0.0.1", port, in_memory=True, default_bucket="bucket").run()
