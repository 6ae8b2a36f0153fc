# SPDX-License-Identifier: Apache-2.0
"""Reads lines of OTLP/JSON with PyPI's opentelemetry-proto and prints a JSON list of their spans.
Runs in the environment `otlp` (scripts/python_env.sh).

OTLP/JSON writes trace and span ids as hexadecimal digits, protobuf's JSON writes bytes as base64:
only these are converted before parsing, and an unknown field is an error.
"""

import base64
import json
import sys

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

IDS = {"traceId": 16, "spanId": 8, "parentSpanId": 8}


def to_protobuf_json(value):
    if isinstance(value, list):
        return [to_protobuf_json(each) for each in value]
    if not isinstance(value, dict):
        return value
    made = {}
    for key, each in value.items():
        if key in IDS:
            identity = bytes.fromhex(each)
            assert len(identity) == IDS[key] and any(identity), (key, each)
            made[key] = base64.b64encode(identity).decode()
        else:
            made[key] = to_protobuf_json(each)
    return made


def attributes(keys):
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in keys}


def spans_of(line):
    text = json.dumps(to_protobuf_json(json.loads(line)))
    request = json_format.Parse(text, ExportTraceServiceRequest(), ignore_unknown_fields=False)
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield {
                    "resource": attributes(resource.resource.attributes),
                    "name": span.name,
                    "trace": span.trace_id.hex(),
                    "id": span.span_id.hex(),
                    "parent": span.parent_span_id.hex(),
                    "begin": span.start_time_unix_nano,
                    "end": span.end_time_unix_nano,
                    "attributes": attributes(span.attributes),
                    "failed": span.status.code == span.status.STATUS_CODE_ERROR,
                    "error": span.status.message,
                }


if __name__ == "__main__":
    json.dump([span for line in sys.stdin for span in spans_of(line)], sys.stdout)
