// A session of the TypeScript SDK's client with a server: node client.mjs URL TOKEN.
// It prints what it saw, as one JSON object.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const [url, token] = process.argv.slice(2);
const client = new Client({ name: "test", version: "1" });
const transport = new StreamableHTTPClientTransport(new URL(url), {
  requestInit: { headers: { Authorization: `Bearer ${token}` } },
});
await client.connect(transport);

async function attempt(call) {
  try {
    return await call();
  } catch (error) {
    return { code: error.code ?? String(error) };
  }
}

const call = (name, args) => attempt(() => client.callTool({ name, arguments: args }));
const { tools } = await client.listTools();
const seen = {
  server: client.getServerVersion().name,
  capabilities: client.getServerCapabilities(),
  ping: await attempt(() => client.ping()),
  tools: tools.map((t) => ({ name: t.name, description: t.description, inputSchema: t.inputSchema })),
  echo: await call("echo", { a: [1, "<b>"] }),
  none: await call("echo"),
  text: await call("text", {}),
  fail: await call("fail", {}),
  denied: await call("permission", { tool_name: "Bash", input: { command: "ls" } }),
  allowed: await call("permission", { tool_name: "Read", input: { file_path: "a" } }),
  unknown: await call("rm", {}),
};
await client.close();
console.log(JSON.stringify(seen));
