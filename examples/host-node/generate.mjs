// Writes src/session.ts: the types of docs/session-api.md, by json-schema-to-typescript.
import { readFile, writeFile } from "node:fs/promises";
import { compile } from "json-schema-to-typescript";

const page = await readFile(new URL("../../docs/session-api.md", import.meta.url), "utf8");
const schema = /```json\n([^]*?)\n```/.exec(page);
if (schema === null) throw new Error("docs/session-api.md has no schema");
const types = await compile(JSON.parse(schema[1]), "Session", {
  additionalProperties: false,
  bannerComment: "// Made from docs/session-api.md by generate.mjs; not for editing.",
});
await writeFile(process.argv[2] ?? new URL("src/session.ts", import.meta.url), types);
