"""Questions an assistant can ask about an encoder (Model Context Protocol): `ctxmix mcp`, `ctxmix demo --mcp`."""
