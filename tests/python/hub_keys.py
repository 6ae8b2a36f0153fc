# SPDX-License-Identifier: Apache-2.0
"""The hub's settings for a test: its own token, a free port, groups that the hub forms."""

from ports import free_port


def hub_keys(work, **more):
    token = work / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    token.chmod(0o600)
    return {"hub.address": f"127.0.0.1:{free_port()}", "hub.token_file": token, "hub.group": "true", **more}


def hub_yaml(work):
    """The settings as lines of a configuration."""
    keys = {name.partition(".")[2]: value for name, value in hub_keys(work).items()}
    return "hub: {{ address: '{address}', token_file: {token_file}, group: {group} }}\n".format(**keys)
