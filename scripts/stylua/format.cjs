// The command of StyLua, since its npm package has none: formats the Lua files of the arguments in place, and prints the
// names of those that it changed. With --check it changes none, and fails if a file isn't formatted.
const { readFileSync, writeFileSync } = require("node:fs");
const stylua = require("@johnnymorganz/stylua"); // NODE_PATH says where
const { Config, CallParenType, IndentType, LuaVersion, OutputVerification } = stylua;

function config() {
  const c = Config.new();
  c.syntax = LuaVersion.LuaJIT;
  c.column_width = 120;
  c.indent_type = IndentType.Spaces;
  c.indent_width = 2;
  c.call_parentheses = CallParenType.Input;
  return c;
}

const check = process.argv[2] === "--check";
for (const file of process.argv.slice(check ? 3 : 2)) {
  const before = readFileSync(file, "utf8");
  let after;
  try {
    after = stylua.formatCode(before, config(), undefined, OutputVerification.Full);
  } catch (error) {
    console.error(`${file}: ${error}`);
    process.exitCode = 1;
    continue;
  }
  if (after === before) continue;
  if (check) {
    console.error(`${file}: not formatted: run scripts/format-lua.sh`);
    process.exitCode = 1;
  } else {
    writeFileSync(file, after);
    console.log(file);
  }
}
