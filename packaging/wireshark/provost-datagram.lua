-- Dissector of Provost's datagram transport over UDP, for Wireshark and tshark (version 4.0 and later).
--
-- The format: docs/datagram.md. To use it:
--   tshark -X lua_script:packaging/wireshark/provost-datagram.lua -r FILE
-- or copy it into Wireshark's folder of personal Lua plug-ins (Help, About, Folders).
--
-- A conversation is recognized by its Open packet. Of a capture that begins later, say the server's port: the preference
-- `provost_datagram.port`, or -d udp.port==PORT,provost_datagram.
--
-- A host that lets its kernel or network card cut up what it sends (UDP_SEGMENT) shows several packets as one in a
-- capture of its own: capture at the receiver, or turn segmentation off.

local protocol = Proto("provost_datagram", "Provost datagram transport")

local HEADER_BYTES = 16
local PREFIX_BYTES = 8
local BITMAP_BYTES = 8
local HELD_UNIT_NS = 64
local MAGIC = "PVDG"

local REQUEST, CREDIT_RETURN, REQUEST_FOR_RESPONSE, RESPONSE = 1, 2, 3, 4
local OPEN, CHALLENGE, ACCEPT, REFUSE = 5, 6, 7, 8

local KINDS = {
  [1] = "Request", [2] = "CreditReturn", [3] = "RequestForResponse", [4] = "Response",
  [5] = "Open", [6] = "Challenge", [7] = "Accept", [8] = "Refuse",
  [9] = "Close", [10] = "Closed", [11] = "Reset", [12] = "Unknown", [13] = "Ping", [14] = "Pong",
}
local REFUSALS = {
  [1] = "no version in common", [2] = "the receive ring is full", [3] = "too many sessions", [4] = "parameters",
}
-- What follows the header of each kind, at least, in bytes.
local PAYLOAD_BYTES = { [REQUEST] = PREFIX_BYTES, [RESPONSE] = PREFIX_BYTES, [OPEN] = 48, [CHALLENGE] = 24, [ACCEPT] = 32, [REFUSE] = 16 }

local f = {
  kind = ProtoField.uint8("provost_datagram.kind", "Kind", base.DEC, KINDS, 0x0f),
  flags = ProtoField.uint8("provost_datagram.flags", "Flags", base.HEX, nil, 0xf0),
  return_credits = ProtoField.bool("provost_datagram.flags.return", "Return credits at once", 8, nil, 0x10),
  marked = ProtoField.bool("provost_datagram.flags.marked", "Met congestion", 8, nil, 0x20),
  untimed = ProtoField.bool("provost_datagram.flags.untimed", "Held for an unknown time", 8, nil, 0x40),
  wanted = ProtoField.uint8("provost_datagram.wanted", "Packets asked for"),
  slot = ProtoField.uint8("provost_datagram.slot", "Slot"),
  session = ProtoField.uint16("provost_datagram.session", "Session (the receiver's number)", base.DEC_HEX),
  token = ProtoField.uint32("provost_datagram.token", "Token (the receiver's)", base.HEX),
  call = ProtoField.uint32("provost_datagram.call", "Call", base.DEC_HEX),
  packet = ProtoField.uint16("provost_datagram.packet", "Packet", base.DEC_HEX),
  check = ProtoField.uint16("provost_datagram.check", "Check", base.HEX),
  message_bytes = ProtoField.uint32("provost_datagram.message_bytes", "Bytes of the message"),
  method = ProtoField.uint16("provost_datagram.method", "Method"),
  status = ProtoField.uint16("provost_datagram.status", "Status"),
  held = ProtoField.uint32("provost_datagram.held_ns", "Held by the server (ns)"),
  payload = ProtoField.bytes("provost_datagram.payload", "Payload"),
  bitmap = ProtoField.uint64("provost_datagram.bitmap", "Arrived out of order", base.HEX),
  oldest = ProtoField.uint8("provost_datagram.open.oldest", "Oldest version"),
  newest = ProtoField.uint8("provost_datagram.open.newest", "Newest version"),
  selective = ProtoField.bool("provost_datagram.open.selective", "Selective recovery"),
  slots = ProtoField.uint8("provost_datagram.slots", "Slots"),
  own_session = ProtoField.uint16("provost_datagram.own_session", "Session (the sender's number)", base.DEC_HEX),
  own_token = ProtoField.uint32("provost_datagram.own_token", "Token (the sender's)", base.HEX),
  credits = ProtoField.uint16("provost_datagram.credits", "Credits"),
  nonce = ProtoField.uint64("provost_datagram.nonce", "Nonce", base.HEX),
  cookie = ProtoField.uint64("provost_datagram.cookie", "Cookie", base.HEX),
  packet_bytes = ProtoField.uint16("provost_datagram.packet_bytes", "Bytes of a packet"),
  version = ProtoField.uint8("provost_datagram.version", "Version"),
  request_bytes_max = ProtoField.uint32("provost_datagram.request_bytes_max", "Bytes of the largest request"),
  refusal = ProtoField.uint16("provost_datagram.refusal", "Refused because of", base.DEC, REFUSALS),
}
for _, field in pairs(f) do
  table.insert(protocol.fields, field)
end

local malformed = ProtoExpert.new(
  "provost_datagram.malformed", "Not a packet of this protocol", expert.group.MALFORMED, expert.severity.ERROR)
protocol.experts = { malformed }
protocol.prefs.port = Pref.uint("UDP port", 0, "The server's port; 0 for none: Open packets are recognized anyway")

-- Whether the packet could be one of ours.
local function is_plausible(tvb)
  if tvb:len() < HEADER_BYTES then return false end
  local kind = bit.band(tvb(0, 1):uint(), 0x0f)
  return KINDS[kind] ~= nil and tvb:len() >= HEADER_BYTES + (PAYLOAD_BYTES[kind] or 0)
end

local function add_flags(tree, tvb, kind)
  if kind == REQUEST_FOR_RESPONSE then
    tree:add(f.wanted, tvb(0, 1), bit.rshift(tvb(0, 1):uint(), 4) + 1)
    return
  end
  local flags = tree:add(f.flags, tvb(0, 1))
  if kind == REQUEST then flags:add(f.return_credits, tvb(0, 1)) end
  if kind == CREDIT_RETURN or kind == RESPONSE then
    flags:add(f.marked, tvb(0, 1))
    flags:add(f.untimed, tvb(0, 1))
  end
end

-- Message data. Returns what the info column says of it.
local function add_data(tree, tvb, kind)
  local prefix = tvb(HEADER_BYTES, PREFIX_BYTES)
  tree:add_le(f.message_bytes, prefix(0, 4))
  tree:add_le(kind == REQUEST and f.method or f.status, prefix(4, 2))
  if kind == RESPONSE then tree:add(f.held, prefix(6, 2), prefix(6, 2):le_uint() * HELD_UNIT_NS) end
  if tvb:len() > HEADER_BYTES + PREFIX_BYTES then tree:add(f.payload, tvb(HEADER_BYTES + PREFIX_BYTES)) end
  local what = kind == REQUEST and "method" or "status"
  return string.format(" %s=%d bytes=%d", what, prefix(4, 2):le_uint(), prefix(0, 4):le_uint())
end

local function add_open(tree, body)
  tree:add(f.oldest, body(4, 1))
  tree:add(f.newest, body(5, 1))
  tree:add(f.selective, body(6, 1))
  tree:add(f.slots, body(7, 1))
  tree:add_le(f.own_session, body(8, 2))
  tree:add_le(f.credits, body(10, 2))
  tree:add_le(f.own_token, body(12, 4))
  tree:add_le(f.nonce, body(16, 8))
  tree:add_le(f.cookie, body(24, 8))
  tree:add_le(f.packet_bytes, body(32, 2))
end

local function add_accept(tree, body)
  tree:add_le(f.nonce, body(0, 8))
  tree:add(f.version, body(8, 1))
  tree:add(f.slots, body(9, 1))
  tree:add_le(f.own_session, body(10, 2))
  tree:add_le(f.own_token, body(12, 4))
  tree:add_le(f.credits, body(16, 2))
  tree:add_le(f.packet_bytes, body(18, 2))
  tree:add_le(f.request_bytes_max, body(20, 4))
end

-- What follows the header. Returns what the info column says of it.
local function add_body(tree, tvb, kind)
  if kind == REQUEST or kind == RESPONSE then return add_data(tree, tvb, kind) end
  if tvb:len() == HEADER_BYTES then return "" end
  local body = tvb(HEADER_BYTES)
  if kind == CREDIT_RETURN and body:len() >= BITMAP_BYTES then
    tree:add_le(f.bitmap, body(0, BITMAP_BYTES))
  elseif kind == OPEN then
    add_open(tree, body)
  elseif kind == CHALLENGE then
    tree:add_le(f.nonce, body(0, 8))
    tree:add_le(f.cookie, body(8, 8))
  elseif kind == ACCEPT then
    add_accept(tree, body)
  elseif kind == REFUSE then
    tree:add_le(f.nonce, body(0, 8))
    tree:add_le(f.refusal, body(8, 2))
  end
  return ""
end

function protocol.dissector(tvb, pinfo, root)
  pinfo.cols.protocol = "PVDG"
  local tree = root:add(protocol, tvb())
  if not is_plausible(tvb) then
    tree:add_proto_expert_info(malformed)
    pinfo.cols.info = "Malformed"
    return
  end
  local kind = bit.band(tvb(0, 1):uint(), 0x0f)
  tree:add(f.kind, tvb(0, 1))
  add_flags(tree, tvb, kind)
  tree:add(f.slot, tvb(1, 1))
  tree:add_le(f.session, tvb(2, 2))
  tree:add_le(f.token, tvb(4, 4))
  tree:add_le(f.call, tvb(8, 4))
  tree:add_le(f.packet, tvb(12, 2))
  tree:add_le(f.check, tvb(14, 2))
  local info = string.format("%s session=%d", KINDS[kind], tvb(2, 2):le_uint())
  if kind <= RESPONSE then
    info = info .. string.format(
      " slot=%d call=%d packet=%d", tvb(1, 1):uint(), tvb(8, 4):le_uint(), tvb(12, 2):le_uint())
  end
  pinfo.cols.info = info .. add_body(tree, tvb, kind)
end

-- An Open packet makes its conversation ours.
local function is_ours(tvb, pinfo, root)
  if not is_plausible(tvb) or bit.band(tvb(0, 1):uint(), 0x0f) ~= OPEN then return false end
  if tvb(HEADER_BYTES, #MAGIC):string() ~= MAGIC then return false end
  pinfo.conversation = protocol
  protocol.dissector(tvb, pinfo, root)
  return true
end
protocol:register_heuristic("udp", is_ours)

local ports = DissectorTable.get("udp.port")
local bound = 0
function protocol.prefs_changed()
  if bound ~= 0 then ports:remove(bound, protocol) end
  bound = protocol.prefs.port
  if bound ~= 0 then ports:add(bound, protocol) end
end
ports:add_for_decode_as(protocol)
