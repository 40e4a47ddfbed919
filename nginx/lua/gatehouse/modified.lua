-- Last-Modified and If-Modified-Since: modified.go in package policy is the reference. It reads dates with Go's
-- time.Parse, which accepts more than RFC 9110; so does this, or the two edges would answer differently.

local byte, format, lower, sub = string.byte, string.format, string.lower, string.sub
local floor = math.floor

local M = {}

local days = { "Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday" }
local months = { "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec" }

local SPACE, PLUS, COMMA, MINUS, DOT, ZERO, NINE = 0x20, 0x2b, 0x2c, 0x2d, 0x2e, 0x30, 0x39

-- short_days, long_days and month_numbers have names in lower case.
local short_days, long_days, month_numbers = {}, {}, {}
for i, name in ipairs(days) do
  short_days[name:sub(1, 3):lower()] = i
  long_days[i] = name:lower()
end
for i, name in ipairs(months) do
  month_numbers[name:lower()] = i
end

local function leap(year)
  return year % 4 == 0 and (year % 100 ~= 0 or year % 400 == 0)
end

local month_days = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 }

-- day_number returns the days from 1970-01-01 to a date. A day beyond the end of its month is one of the next.
local function day_number(year, month, day)
  if month <= 2 then -- years begin in March, so that the leap day is the last
    year = year - 1
  end
  local era = floor(year / 400)
  local of_era = year - era * 400
  local of_year = floor((153 * (month + (month > 2 and -3 or 9)) + 2) / 5) + day - 1
  return era * 146097 + of_era * 365 + floor(of_era / 4) - floor(of_era / 100) + of_year - 719468
end

-- date_of returns year, month and day of a day_number.
local function date_of(number)
  number = number + 719468
  local era = floor(number / 146097)
  local of_era = number - era * 146097
  local year = floor((of_era - floor(of_era / 1460) + floor(of_era / 36524) - floor(of_era / 146096)) / 365)
  local of_year = of_era - (365 * year + floor(year / 4) - floor(year / 100))
  local shifted = floor((5 * of_year + 2) / 153)
  local day = of_year - floor((153 * shifted + 2) / 5) + 1
  local month = shifted + (shifted < 10 and 3 or -9)
  return year + era * 400 + (month <= 2 and 1 or 0), month, day
end

-- date formats a time in unix seconds for a header (RFC 9110, section 5.6.7).
function M.date(unix)
  local number = floor(unix / 86400)
  local rest = unix - number * 86400
  local year, month, day = date_of(number)
  return format(
    year < 0 and "%s, %02d %s %05d %02d:%02d:%02d GMT" or "%s, %02d %s %04d %02d:%02d:%02d GMT",
    sub(days[(number + 4) % 7 + 1], 1, 3),
    day,
    months[month],
    year,
    floor(rest / 3600),
    floor(rest / 60) % 60,
    rest % 60
  )
end

-- What follows reads text from an index on, and returns the index behind it first; nil if the text differs, or if the
-- index is nil, because the text before it differed.

-- blanks reads any number of spaces, at least one unless the text ends here.
local function blanks(text, i)
  local c = i and byte(text, i)
  if not i or c and c ~= SPACE then
    return nil
  end
  while byte(text, i) == SPACE do
    i = i + 1
  end
  return i
end

local function literal(text, i, c)
  return i and byte(text, i) == c and i + 1 or nil
end

local function digit(text, i)
  local c = byte(text, i)
  return c and c >= ZERO and c <= NINE and c - ZERO or nil
end

-- two_digits also reads one digit, if short.
local function two_digits(text, i, short)
  if not i then
    return nil
  end
  local a, b = digit(text, i), digit(text, i + 1)
  if a and b then
    return i + 2, 10 * a + b
  elseif a and short then
    return i + 1, a
  end
  return nil
end

local function four_digits(text, i)
  if not i then
    return nil
  end
  local a, b, c, d = digit(text, i), digit(text, i + 1), digit(text, i + 2), digit(text, i + 3)
  if a and b and c and d then
    return i + 4, 1000 * a + 100 * b + 10 * c + d
  end
  return nil
end

local function short_day(text, i)
  return short_days[lower(sub(text, i, i + 2))] and i + 3 or nil
end

local function long_day(text, i)
  for at = 1, #long_days do
    local name = long_days[at]
    if lower(sub(text, i, i + #name - 1)) == name then
      return i + #name
    end
  end
  return nil
end

local function month_of(text, i)
  local month = i and month_numbers[lower(sub(text, i, i + 2))]
  if not month then
    return nil
  end
  return i + 3, month
end

-- year_of_two reads a year of two digits. Go reads a sign and a digit, too: "-5" is 5 years before 2000.
local function year_of_two(text, i)
  if not i then
    return nil
  end
  local sign, year = byte(text, i), digit(text, i + 1)
  if not year then
    return nil
  end
  if sign == MINUS then
    year = -year
  elseif sign ~= PLUS then
    local ten = digit(text, i)
    if not ten then
      return nil
    end
    year = 10 * ten + year
  end
  return i + 2, year >= 69 and 1900 + year or 2000 + year
end

-- clock reads "15:04:05", and a fraction that may follow. It returns the seconds of the day, and the ms.
local function clock(text, i)
  local hour, minute, second
  i, hour = two_digits(text, i, true)
  i, minute = two_digits(text, literal(text, i, 0x3a))
  i, second = two_digits(text, literal(text, i, 0x3a))
  if not i or hour > 23 or minute > 59 or second > 59 then
    return nil
  end
  local ms = 0
  local c = byte(text, i)
  if (c == DOT or c == COMMA) and digit(text, i + 1) then
    ms = 100 * digit(text, i + 1)
    local tens = digit(text, i + 2)
    if tens then
      ms = ms + 10 * tens + (digit(text, i + 3) or 0)
    end
    i = i + 2
    while digit(text, i) do
      i = i + 1
    end
  end
  return i, (hour * 60 + minute) * 60 + second, ms
end

-- zone reads " GMT", which ends the text.
local function zone(text, i)
  i = blanks(text, i)
  return i and i + 2 == #text and sub(text, i) == "GMT"
end

-- in_month reports whether a month has a day.
local function in_month(year, month, day)
  return day >= 1 and day <= month_days[month] + (month == 2 and leap(year) and 1 or 0)
end

-- imf_fixdate reads "Mon, 02 Jan 2006 15:04:05 GMT". It returns unix seconds.
local function imf_fixdate(text)
  local day, month, year, seconds
  local i = blanks(text, literal(text, short_day(text, 1), COMMA))
  i, day = two_digits(text, i)
  i, month = month_of(text, blanks(text, i))
  i, year = four_digits(text, blanks(text, i))
  i, seconds = clock(text, blanks(text, i))
  if not i or not zone(text, i) or not in_month(year, month, day) then
    return nil
  end
  return day_number(year, month, day) * 86400 + seconds
end

-- ahead is 50 years of 365 days, in ms.
local ahead = 50 * 365 * 86400 * 1000

-- rfc850 reads "Monday, 02-Jan-06 15:04:05 GMT". It returns unix seconds, of the past if the two digits of the year
-- would be more than 50 years ahead.
local function rfc850(text, now_ms)
  local day, month, year, seconds, ms
  local i = blanks(text, literal(text, long_day(text, 1), COMMA))
  i, day = two_digits(text, i)
  i, month = month_of(text, literal(text, i, MINUS))
  i, year = year_of_two(text, literal(text, i, MINUS))
  i, seconds, ms = clock(text, blanks(text, i))
  if not i or not zone(text, i) or not in_month(year, month, day) then
    return nil
  end
  local unix = day_number(year, month, day) * 86400 + seconds
  if unix * 1000 + ms > now_ms + ahead then
    unix = day_number(year - 100, month, day) * 86400 + seconds
  end
  return unix
end

-- asctime reads "Mon Jan _2 15:04:05 2006". It returns unix seconds.
local function asctime(text)
  local month, day, seconds, year
  local i = blanks(text, short_day(text, 1))
  i, month = month_of(text, i)
  i, day = two_digits(text, blanks(text, i), true)
  i, seconds = clock(text, blanks(text, i))
  i, year = four_digits(text, blanks(text, i))
  if not i or i <= #text or not in_month(year, month, day) then
    return nil
  end
  return day_number(year, month, day) * 86400 + seconds
end

-- not_modified_since reports whether If-Modified-Since, nil or "" for none, makes the answer a 304, when modified is
-- the time of the last change in unix seconds (RFC 9110, section 13.1.3). With an invalid date, or one in the future,
-- it returns false.
function M.not_modified_since(since, modified, now_ms)
  if not since or since == "" then
    return false
  end
  local unix = imf_fixdate(since) or rfc850(since, now_ms) or asctime(since)
  return unix ~= nil and modified <= unix and unix * 1000 <= now_ms
end

return M
