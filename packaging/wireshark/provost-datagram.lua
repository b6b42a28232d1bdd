-- Dissector of Provost's datagram transport over UDP, for Wireshark and tshark (version 4.0 and later).
--
-- The format: docs/datagram.md. To use it:
--   tshark -X lua_script:packaging/wireshark/provost-datagram.lua -r FILE
-- or copy it into Wireshark's folder of personal Lua plug-ins (Help, About, Folders).
--
-- A conversation is recognized by its Open packet. Of a capture that begins later, say the server's port: the preference
-- `provost_datagram.port`, or -d udp.port==PORT,provost_datagram.
--
-- Of sealed sessions it shows what is in the clear: the header, the packet's number, where the encrypted part and the tag are.
-- Which sessions are sealed, their Open and Accept say; of a capture that begins later, the preference
-- `provost_datagram.sealed` does, or the packet's length where its kind has but one.
--
-- Whether a CRC32C follows each header, no packet says: the preference `provost_datagram.crc32c` does.
--
-- A host that lets its kernel or network card cut up what it sends (UDP_SEGMENT) shows several packets as one in a
-- capture of its own: capture at the receiver, or turn segmentation off.

local protocol = Proto("provost_datagram", "Provost datagram transport")

local HEADER_BYTES = 16
local PREFIX_BYTES = 8
local BITMAP_BYTES = 8
local CRC_BYTES = 4
local HELD_UNIT_NS = 64
local MAGIC = "PVDG"
local NUMBER_BYTES = 8
local TAG_BYTES = 16
local SEAL_BYTES = NUMBER_BYTES + TAG_BYTES
local OPEN_BYTES, ACCEPT_BYTES, KEY_BYTES = 48, 32, 32

local REQUEST, CREDIT_RETURN, REQUEST_FOR_RESPONSE, RESPONSE = 1, 2, 3, 4
local OPEN, CHALLENGE, ACCEPT, REFUSE, UNKNOWN = 5, 6, 7, 8, 12

local KINDS = {
  [1] = "Request", [2] = "CreditReturn", [3] = "RequestForResponse", [4] = "Response",
  [5] = "Open", [6] = "Challenge", [7] = "Accept", [8] = "Refuse",
  [9] = "Close", [10] = "Closed", [11] = "Reset", [12] = "Unknown", [13] = "Ping", [14] = "Pong",
}
local REFUSALS = {
  [1] = "no version in common", [2] = "the receive ring is full", [3] = "too many sessions", [4] = "parameters",
  [5] = "another reason", [6] = "one end seals and the other does not, or their keys differ",
}
local CIPHERS = { [0] = "none", [1] = "ChaCha20-Poly1305", [2] = "AES-128-GCM" }
-- What follows the header of each kind, at least, in bytes.
local PAYLOAD_BYTES = { [REQUEST] = PREFIX_BYTES, [RESPONSE] = PREFIX_BYTES, [OPEN] = OPEN_BYTES, [CHALLENGE] = 24, [ACCEPT] = ACCEPT_BYTES, [REFUSE] = 16 }

local f = {
  kind = ProtoField.uint8("provost_datagram.kind", "Kind", base.DEC, KINDS, 0x0f),
  flags = ProtoField.uint8("provost_datagram.flags", "Flags", base.HEX, nil, 0xf0),
  return_credits = ProtoField.bool("provost_datagram.flags.return", "Return credits at once", 8, nil, 0x10),
  small_request = ProtoField.bool("provost_datagram.flags.small_request", "In small packets", 8, nil, 0x20),
  small_answer = ProtoField.bool("provost_datagram.flags.small_answer", "In small packets", 8, nil, 0x10),
  marked = ProtoField.bool("provost_datagram.flags.marked", "Met congestion", 8, nil, 0x20),
  untimed = ProtoField.bool("provost_datagram.flags.untimed", "Held for an unknown time", 8, nil, 0x40),
  away = ProtoField.bool("provost_datagram.flags.away", "Was off its core", 8, nil, 0x80),
  wanted = ProtoField.uint8("provost_datagram.wanted", "Packets asked for"),
  slot = ProtoField.uint8("provost_datagram.slot", "Slot"),
  session = ProtoField.uint16("provost_datagram.session", "Session (the receiver's number)", base.DEC_HEX),
  token = ProtoField.uint32("provost_datagram.token", "Token (the receiver's)", base.HEX),
  call = ProtoField.uint32("provost_datagram.call", "Call", base.DEC_HEX),
  packet = ProtoField.uint16("provost_datagram.packet", "Packet", base.DEC_HEX),
  check = ProtoField.uint16("provost_datagram.check", "Check", base.HEX),
  crc = ProtoField.uint32("provost_datagram.crc", "CRC32C", base.HEX),
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
  cipher = ProtoField.uint8("provost_datagram.open.cipher", "Cipher", base.DEC, CIPHERS),
  public_key = ProtoField.bytes("provost_datagram.public_key", "Public key"),
  proof = ProtoField.bytes("provost_datagram.proof", "Proof"),
  loss_proof = ProtoField.bytes("provost_datagram.loss_proof", "Proof that the session is lost"),
  sealed = ProtoField.bytes("provost_datagram.sealed", "Sealed"),
  number = ProtoField.uint64("provost_datagram.sealed.number", "Number of the packet", base.DEC),
  encrypted = ProtoField.bytes("provost_datagram.sealed.encrypted", "Encrypted"),
  tag = ProtoField.bytes("provost_datagram.sealed.tag", "Tag"),
  refusal = ProtoField.uint16("provost_datagram.refusal", "Refused because of", base.DEC, REFUSALS),
}
for _, field in pairs(f) do
  table.insert(protocol.fields, field)
end

local malformed = ProtoExpert.new(
  "provost_datagram.malformed", "Not a packet of this protocol", expert.group.MALFORMED, expert.severity.ERROR)
protocol.experts = { malformed }
protocol.prefs.port = Pref.uint("UDP port", 0, "The server's port; 0 for none: Open packets are recognized anyway")
protocol.prefs.sealed = Pref.bool("Sealed", false, "Take sessions whose beginning was not captured for sealed ones")
protocol.prefs.crc32c = Pref.bool("CRC32C", false, "A CRC32C follows the header of each packet")

-- Sessions whose beginning was captured, by the end that receives: whether they are sealed.
local sealed_sessions = {}
function protocol.init() sealed_sessions = {} end

local function session_key(address, port, number, token)
  return string.format("%s %d %d %d", tostring(address), port, number, token)
end

-- Notes what an Open says of the client's end of a session, and an Accept of the server's.
local function note_session(tvb, pinfo, kind)
  local body = tvb(HEADER_BYTES)
  local is_sealed = body:len() >= (kind == OPEN and OPEN_BYTES or ACCEPT_BYTES) + 2 * KEY_BYTES
  local number, token = kind == OPEN and body(8, 2) or body(10, 2), body(12, 4)
  sealed_sessions[session_key(pinfo.src, pinfo.src_port, number:le_uint(), token:le_uint())] = is_sealed
end

-- Whether the packet is one of a sealed session.
local function is_sealed(tvb, pinfo, kind)
  if kind >= OPEN and kind <= REFUSE or kind == UNKNOWN then return false end
  local key = session_key(pinfo.dst, pinfo.dst_port, tvb(2, 2):le_uint(), tvb(4, 4):le_uint())
  if sealed_sessions[key] ~= nil then return sealed_sessions[key] end
  if kind == REQUEST or kind == RESPONSE then return protocol.prefs.sealed end
  return tvb:len() >= HEADER_BYTES + SEAL_BYTES
end

-- Whether the packet could be one of ours.
local function is_plausible(tvb, pinfo)
  if tvb:len() < HEADER_BYTES then return false end
  local kind = bit.band(tvb(0, 1):uint(), 0x0f)
  if KINDS[kind] == nil then return false end
  local least = PAYLOAD_BYTES[kind] or 0
  if is_sealed(tvb, pinfo, kind) then
    local has_prefix = kind == REQUEST or kind == RESPONSE
    least = SEAL_BYTES + (has_prefix and PREFIX_BYTES or 0)
  end
  return tvb:len() >= HEADER_BYTES + least
end

local function add_flags(tree, tvb, kind)
  if kind == REQUEST_FOR_RESPONSE then
    tree:add(f.wanted, tvb(0, 1), bit.rshift(tvb(0, 1):uint(), 4) + 1)
    return
  end
  local flags = tree:add(f.flags, tvb(0, 1))
  if kind == REQUEST then
    flags:add(f.return_credits, tvb(0, 1))
    flags:add(f.small_request, tvb(0, 1))
  end
  if kind == CREDIT_RETURN or kind == RESPONSE then
    flags:add(f.small_answer, tvb(0, 1))
    flags:add(f.marked, tvb(0, 1))
    flags:add(f.untimed, tvb(0, 1))
    flags:add(f.away, tvb(0, 1))
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

-- What a sealed session's Open and Accept end with.
local function add_key(tree, body, at)
  if body:len() < at + 2 * KEY_BYTES then return end
  tree:add(f.public_key, body(at, KEY_BYTES))
  tree:add(f.proof, body(at + KEY_BYTES, KEY_BYTES))
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
  tree:add(f.cipher, body(34, 1))
  add_key(tree, body, OPEN_BYTES)
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
  add_key(tree, body, ACCEPT_BYTES)
end

-- What follows the header of a packet of a sealed session. Returns what the info column says of it.
local function add_sealed(tree, tvb)
  local sealed = tvb(HEADER_BYTES)
  local encrypted_bytes = sealed:len() - SEAL_BYTES
  local branch = tree:add(f.sealed, sealed)
  branch:add_le(f.number, sealed(0, NUMBER_BYTES))
  if encrypted_bytes > 0 then branch:add(f.encrypted, sealed(NUMBER_BYTES, encrypted_bytes)) end
  branch:add(f.tag, sealed(NUMBER_BYTES + encrypted_bytes, TAG_BYTES))
  return string.format(" sealed number=%s", tostring(sealed(0, NUMBER_BYTES):le_uint64()))
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
  elseif kind == UNKNOWN then
    tree:add(f.loss_proof, body)
  end
  return ""
end

-- The packet as it would be without a CRC, and the CRC, if there is one.
local function without_crc(tvb)
  local begin = HEADER_BYTES + CRC_BYTES
  if not protocol.prefs.crc32c or tvb:len() < begin then return tvb, nil end
  local bytes = tvb(0, HEADER_BYTES):bytes()
  if tvb:len() > begin then bytes:append(tvb(begin):bytes()) end
  return bytes:tvb("Packet without its CRC"), tvb(HEADER_BYTES, CRC_BYTES)
end

function protocol.dissector(whole, pinfo, root)
  pinfo.cols.protocol = "PVDG"
  local tree = root:add(protocol, whole())
  local tvb, crc = without_crc(whole)
  if not is_plausible(tvb, pinfo) then
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
  if crc then tree:add_le(f.crc, crc) end
  local info = string.format("%s session=%d", KINDS[kind], tvb(2, 2):le_uint())
  if kind <= RESPONSE then
    info = info .. string.format(
      " slot=%d call=%d packet=%d", tvb(1, 1):uint(), tvb(8, 4):le_uint(), tvb(12, 2):le_uint())
  end
  if is_sealed(tvb, pinfo, kind) then
    pinfo.cols.info = info .. add_sealed(tree, tvb)
    return
  end
  pinfo.cols.info = info .. add_body(tree, tvb, kind)
  if kind == OPEN or kind == ACCEPT then note_session(tvb, pinfo, kind) end
end

-- An Open packet makes its conversation ours.
local function is_ours(whole, pinfo, root)
  local tvb = without_crc(whole)
  if not is_plausible(tvb, pinfo) or bit.band(tvb(0, 1):uint(), 0x0f) ~= OPEN then return false end
  if tvb(HEADER_BYTES, #MAGIC):string() ~= MAGIC then return false end
  pinfo.conversation = protocol
  protocol.dissector(whole, pinfo, root)
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
