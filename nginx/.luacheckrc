std = "ngx_lua"
max_line_length = 120
self = false -- of methods that need no state
