-- The file with the rules. gatehousectl has checked them; here it shows that the file is one that gatehousectl wrote.

local M = {}

-- format is the version of the file, as in nginx/rules.go.
local format = "3"

-- read returns the rules in a file, for the library; nil and the reason if it isn't one that gatehousectl wrote.
function M.read(path)
  local file, err = io.open(path, "rb")
  if not file then
    return nil, err .. ": write the file with gatehousectl nginx render"
  end
  local text = file:read "*a"
  file:close()
  local found, digest, rules = text:match '^{"format": (%d+), "md5": "(%x+)", "rules":\n(.*)}\n$'
  if found ~= format then
    local other = found or text:match '^{%s*"format": (%d+)' or "none"
    local why = "%s has format %s, want %s: write it with gatehousectl of the same release"
    return nil, why:format(path, other, format)
  elseif ngx.md5(rules) ~= digest then
    return nil, path .. " was changed by hand: change the rules, and write it with gatehousectl nginx render"
  end
  return rules
end

return M
