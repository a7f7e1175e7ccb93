"""What Redis does at once: each script is atomic, and is in the append-only file as a whole or not at all.

The first key is the topic's, ``penstock:{orders}``; all others are made from it, and its braces keep
them on one node. The records of partition 3 are the stream ``penstock:{orders}:3``; a record's id is its
offset and a 1, as in ``17-1``, because Redis does not allow ``0-0``. The fields of a record are ``t``, the
time in milliseconds; ``k``, the key; ``v``, the value, absent in a tombstone; and ``h:<name>`` for each header.

Many records cross the border in one string, with their lengths as MessagePack: a string of its own for
each field would cost the client more than all the rest.
"""

from __future__ import annotations

_COMMON = """
local base = KEYS[1]

local function whole(number) return string.format('%.0f', number) end

local function now_ms()
  local now = redis.call('TIME')
  return tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
end

local function offset_of(entry) return tonumber(string.match(entry[1], '^%d+')) end

local function time_of(entry)
  local fields = entry[2]
  for i = 1, #fields, 2 do
    if fields[i] == 't' then return tonumber(fields[i + 1]) end
  end
  return 0
end

local function first_from(stream, offset)
  return redis.call('XRANGE', stream, whole(offset), '+', 'COUNT', 1)[1]
end

local function end_of(partition)
  return tonumber(redis.call('HGET', base .. ':ends', partition) or '0')
end

-- The first record from a time on; times are taken to grow with the offsets.
local function find_time(stream, low, high, time)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local entry = first_from(stream, middle)
    if entry == nil or time_of(entry) >= time then
      high = middle
    else
      low = offset_of(entry) + 1
    end
  end
  return low
end

local function trim(partition, retention, how)
  local stream, last = base .. ':' .. partition, end_of(partition)
  local keep = 0
  if retention[1] and redis.call('XLEN', stream) > tonumber(retention[1]) then
    keep = last - tonumber(retention[1])
  end
  if retention[2] then
    local oldest = now_ms() - tonumber(retention[2])
    local first = first_from(stream, 0)
    if first and time_of(first) < oldest then
      keep = math.max(keep, find_time(stream, offset_of(first), last, oldest))
    end
  end
  if keep <= 0 then return 0 end
  if retention[3] == '1' then
    for _, group in ipairs(redis.call('SMEMBERS', base .. ':groups')) do
      local at = redis.call('HGET', base .. ':offsets:' .. group, partition)
      keep = math.min(keep, tonumber(at or '0'))
    end
  end
  if keep <= 0 then return 0 end
  return redis.call('XTRIM', stream, 'MINID', how, whole(keep))
end
"""

PRODUCE = (
    _COMMON
    + """
-- lane, its sequence, its life in ms, partitions as the producer knows them; then for each partition:
-- its number, the columns, the bytes. Answers with the first offset in each.
local lane = base .. ':lane:' .. ARGV[1]
local seen = redis.call('GET', lane)
if seen then
  local before = cmsgpack.unpack(seen)
  if before[1] == tonumber(ARGV[2]) then return before[2] end
  -- It was on its way for so long that it was sent again, and that came first.
  if before[1] > tonumber(ARGV[2]) then return {'late'} end
end
local topic = redis.call('HMGET', base, 'partitions', 'records_max', 'age_ms_max', 'protect_groups')
if topic[1] ~= ARGV[4] then return {'partitions', tonumber(topic[1] or '0')} end
local now, firsts, call = now_ms(), {}, redis.call
for i = 5, #ARGV, 3 do
  local partition, columns, bytes = ARGV[i], cmsgpack.unpack(ARGV[i + 1]), ARGV[i + 2]
  local times, keys, values, headers = columns[1], columns[2], columns[3], columns[4]
  local stream, at = base .. ':' .. partition, end_of(partition)
  local key_at, value_at, header_at = 1, columns[5] + 1, columns[6] + 1
  firsts[#firsts + 1] = at
  for n = 1, #values do
    local record = {'t', times[n] or now}
    local length = keys[n] or -1
    if length >= 0 then
      record[3], record[4] = 'k', string.sub(bytes, key_at, key_at + length - 1)
      key_at = key_at + length
    end
    length = values[n]
    if length >= 0 then
      local place = #record
      record[place + 1] = 'v'
      record[place + 2] = string.sub(bytes, value_at, value_at + length - 1)
      value_at = value_at + length
    end
    local own = headers[n]
    if own then
      for h = 1, #own, 2 do
        record[#record + 1] = 'h:' .. own[h]
        record[#record + 1] = string.sub(bytes, header_at, header_at + own[h + 1] - 1)
        header_at = header_at + own[h + 1]
      end
    end
    call('XADD', stream, whole(at) .. '-1', unpack(record))
    at = at + 1
  end
  call('HSET', base .. ':ends', partition, whole(at))
  if topic[2] or topic[3] then trim(partition, {topic[2], topic[3], topic[4]}, '~') end
end
call('SET', lane, cmsgpack.pack({tonumber(ARGV[2]), firsts}), 'PX', ARGV[3])
call('PUBLISH', base .. ':news', '')
return firsts
"""
)

READ = (
    _COMMON
    + """
-- records and bytes at most, of each partition; then for each its number and where to begin. Answers with
-- the partition, the offsets (the first alone when there is no gap), the columns, the bytes.
local records_max, bytes_max = tonumber(ARGV[1]), tonumber(ARGV[2])
local found = {}

local function add(entry, columns, keys, values, headers)
  local fields, n = entry[2], #columns[1] + 1
  local time, key_length, value_length, own = 0, -1, -1, nil
  for i = 1, #fields, 2 do
    local name, value = fields[i], fields[i + 1]
    if name == 'v' then
      value_length = #value
      values[#values + 1] = value
    elseif name == 't' then
      time = tonumber(value) or 0
    elseif name == 'k' then
      key_length = #value
      keys[#keys + 1] = value
    elseif string.sub(name, 1, 2) == 'h:' then
      own = own or {}
      own[#own + 1] = #name - 2
      own[#own + 1] = #value
      headers[#headers + 1] = string.sub(name, 3)
      headers[#headers + 1] = value
    end
  end
  columns[1][n], columns[2][n], columns[3][n] = time, key_length, value_length
  if own then
    columns[4][#columns[4] + 1] = {n - 1, own}
  end
  return math.max(0, key_length) + math.max(0, value_length)
end

for i = 3, #ARGV, 2 do
  local partition, from = ARGV[i], tonumber(ARGV[i + 1])
  local stream, first, last = base .. ':' .. partition, nil, nil
  local count, size, ask, offsets = 0, 0, 100, {}
  local columns, keys, values, headers = {{}, {}, {}, {}}, {}, {}, {}
  while count < records_max and size < bytes_max do
    ask = math.min(ask, records_max - count)
    local entries = redis.call('XRANGE', stream, whole(from), '+', 'COUNT', ask)
    for _, entry in ipairs(entries) do
      size = size + add(entry, columns, keys, values, headers)
      count = count + 1
      offsets[count] = offset_of(entry)
    end
    if #entries < ask then break end
    from = offsets[count] + 1
    -- As many more as will fit, by what the records were like so far.
    ask = math.max(1, math.min(1000, math.floor((bytes_max - size) * count / (size + 1))))
  end
  if count > 0 then
    if offsets[count] - offsets[1] == count - 1 then offsets = {offsets[1]} end
    local key_bytes, value_bytes = table.concat(keys), table.concat(values)
    columns[5], columns[6] = #key_bytes, #key_bytes + #value_bytes
    found[#found + 1] = {
      tonumber(partition), cmsgpack.pack(offsets), cmsgpack.pack(columns),
      key_bytes .. value_bytes .. table.concat(headers)}
  end
end
return found
"""
)

PLACES = (
    _COMMON
    + """
-- group, what to do ('look' or 'begin'), where a new group starts and its number; then the partitions.
-- Answers for each: committed or -1, where that start is, the earliest, the end, the time of the first
-- record that is not committed or -1.
local offsets, found = base .. ':offsets:' .. ARGV[1], {}
for i = 5, #ARGV do
  local partition, number = ARGV[i], tonumber(ARGV[4])
  local stream, last = base .. ':' .. partition, end_of(partition)
  local first = first_from(stream, 0)
  local earliest = first and offset_of(first) or last
  local at = earliest
  if ARGV[3] == 'latest' then at = last
  elseif ARGV[3] == 'offset' then at = number
  elseif ARGV[3] == 'time' then at = find_time(stream, earliest, last, number) end
  local committed = tonumber(redis.call('HGET', offsets, partition) or '-1')
  if committed < 0 and ARGV[2] == 'begin' and at >= earliest and at <= last then
    redis.call('HSET', offsets, partition, whole(at))
  end
  local waiting = first_from(stream, math.max(committed, 0))
  found[#found + 1] = {committed, at, earliest, last, waiting and time_of(waiting) or -1}
end
return found
"""
)

COMMIT = (
    _COMMON
    + """
-- group, member, 'forward' or 'anywhere'; then partition, offset and so on. Only the owner may.
local owners, offsets = base .. ':owners:' .. ARGV[1], base .. ':offsets:' .. ARGV[1]
for i = 4, #ARGV, 2 do
  if redis.call('HGET', owners, ARGV[i]) ~= ARGV[2] then return {'fenced', ARGV[i]} end
  local at, last = tonumber(ARGV[i + 1]), end_of(ARGV[i])
  if at < 0 or at > last then return {'range', ARGV[i], last} end
end
local stands = {}
for i = 4, #ARGV, 2 do
  local at = tonumber(ARGV[i + 1])
  local before = tonumber(redis.call('HGET', offsets, ARGV[i]) or '-1')
  if ARGV[3] == 'forward' and before > at then at = before end
  if at ~= before then redis.call('HSET', offsets, ARGV[i], whole(at)) end
  stands[#stands + 1] = at
end
return stands
"""
)

CREATE = """
-- Fields and values of the topic; nothing when it is there already.
if redis.call('HEXISTS', KEYS[1], 'partitions') == 1 then return 0 end
redis.call('HSET', KEYS[1], unpack(ARGV))
return 1
"""

TRIM = (
    _COMMON
    + """
-- The number of partitions. Answers with how many records went.
local retention, gone = redis.call('HMGET', base, 'records_max', 'age_ms_max', 'protect_groups'), 0
for partition = 0, tonumber(ARGV[1]) - 1 do
  gone = gone + trim(whole(partition), retention, '=')
end
return gone
"""
)

READ_GROUP = (
    _COMMON
    + """
local group = redis.call('HMGET', base .. ':group:' .. ARGV[1], 'state', 'version')
return {group[1] or '', group[2] or '0', now_ms()}
"""
)

WRITE_GROUP = (
    _COMMON
    + """
-- group, the version that is replaced, the new state, '1' when partitions moved; then who owns what.
local group, owners = base .. ':group:' .. ARGV[1], base .. ':owners:' .. ARGV[1]
if (redis.call('HGET', group, 'version') or '0') ~= ARGV[2] then return 0 end
redis.call('HSET', group, 'state', ARGV[3], 'version', whole(tonumber(ARGV[2]) + 1))
redis.call('PERSIST', group)
if ARGV[4] == '1' then
  redis.call('DEL', owners)
  for i = 5, #ARGV, 2 do redis.call('HSET', owners, ARGV[i], ARGV[i + 1]) end
  redis.call('SADD', base .. ':groups', ARGV[1])
  redis.call('PUBLISH', base .. ':bell:' .. ARGV[1], '')
end
return 1
"""
)

FORGET_GROUP = (
    _COMMON
    + """
-- group, and the version in which it has no member. The version stays for an hour: who has read it may
-- not take a new group for the old one.
local group = base .. ':group:' .. ARGV[1]
if (redis.call('HGET', group, 'version') or '0') ~= ARGV[2] then return 0 end
redis.call('DEL', base .. ':offsets:' .. ARGV[1], base .. ':owners:' .. ARGV[1])
redis.call('HDEL', group, 'state')
redis.call('HINCRBY', group, 'version', 1)
redis.call('EXPIRE', group, 3600)
redis.call('SREM', base .. ':groups', ARGV[1])
return 1
"""
)
