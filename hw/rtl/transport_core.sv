// The transport: one event at a time, it decides what a packet, an entry, a call's time-out or a command of the host means, by the
// line of the connection, and gives orders to the modules that move lines.
//
//   IDLE ── choose an event, look its connection up ──► WAIT ── the line is here ──► ACT ──► IDLE
//     └──────────── needs no connection ───────────────────────────────────────────► ACT
//                                             choose the next packet or entry: WAIT ◄─┴─► ACT
//
// In ACT everything that follows from the event happens at once: the new line goes to the cache, at most one packet to the
// transmitter and at most one slot to the receive writer. An event is chosen only when both have room for two orders (for one that
// is being given in the same cycle, and for the event's own), so ACT never waits. A packet or an entry leaves its queue when it is chosen
// and is held here, so that the next is there to be chosen in ACT: an event takes two cycles. Time-outs and commands are chosen in IDLE alone.
module transport_core #(
    parameter int FLOWS = 4,
    parameter int FLOW_BITS = 2
) (
    input logic clk,
    input logic rst,
    // Ticks of 64 ns, and cycles.
    input logic [31:0] now,
    input logic [31:0] cycle,
    input logic [3:0] tries_max,
    input logic [7:0] control_flow,
    input logic [4*FLOWS-1:0] flow_stride_log2,
    input logic [8*FLOWS-1:0] flow_calls_max,
    // Where packets of messages of several are stored: eight areas of so many lines, as a logarithm, for each connection.
    input logic [31:0] area_base,
    input logic [3:0] area_lines_log2,
    // Packets, entries, and commands of the host.
    input logic packet_valid,
    output logic packet_take,
    input nic_pkg::packet_t packet_next,
    input logic entry_valid,
    output logic entry_take,
    input nic_pkg::entry_t entry_next,
    input logic command_valid,
    output logic command_take,
    input logic [15:0] command_connection,
    input logic [1:0] command,
    // The connection cache.
    output logic lookup,
    input logic lookup_ready,
    output logic [15:0] lookup_connection,
    output logic lookup_anew,
    input logic answer,
    input logic [nic_pkg::CONNECTION_BITS-1:0] answer_line,
    output logic update,
    output logic [nic_pkg::CONNECTION_BITS-1:0] update_line,
    // Method and first bytes of the packet that was chosen, and the policies' verdict on it.
    output logic [15:0] packet_method,
    output logic [255:0] packet_payload,
    input logic packet_denied,
    output logic [2:0] bucket,
    input logic bucket_has_token,
    output logic bucket_spend,
    // The load balancer.
    output logic [1:0] balance,
    output logic [7:0] balance_first,
    output logic [7:0] balance_mask,
    output logic balance_used,
    input logic [FLOW_BITS-1:0] balance_flow,
    // Credits of receive rings.
    input logic [FLOWS-1:0] credit_spare,
    output logic credit_take,
    output logic credit_give,
    output logic [FLOW_BITS-1:0] credit_flow,
    // The call table.
    output logic begin_call,
    output logic [nic_pkg::BUFFER_BITS-1:0] call_index,
    output nic_pkg::call_t begin_data,
    input nic_pkg::call_t call,
    input logic call_used,
    input logic call_rests,
    input logic [3:0] call_tries,
    input nic_pkg::progress_t call_progress,
    output logic end_call,
    output logic send_again,
    output logic ask_again,
    output logic at_work,
    output logic advance,
    output nic_pkg::progress_t advance_progress,
    input logic due,
    input logic [nic_pkg::BUFFER_BITS-1:0] due_index,
    output logic due_take,
    input logic [8*FLOWS-1:0] flow_calls,
    input logic [7:0] calls,
    // A message buffer that nobody needs: its entry was refused.
    output logic buffer_give,
    output logic [nic_pkg::BUFFER_BITS-1:0] buffer_give_id,
    // Orders. Each is taken when it is given: there must be room for it.
    output logic transmit_valid,
    input logic transmit_room_for_two,
    output nic_pkg::transmit_t transmit,
    output logic receive_valid,
    input logic receive_room_for_two,
    output nic_pkg::receive_t receive,
    // Counted.
    output logic count_token,
    output logic count_stale,
    output logic count_protocol,
    output logic count_room,
    output logic count_refused,
    output logic count_sent,
    output logic count_delivered,
    output logic count_denied,
    output logic count_limited,
    output logic count_repeated,
    output logic count_completed,
    output logic count_failed,
    output logic count_again,
    output logic [31:0] duration
);
  // Buffers that calls leave to others: else calls could hold all, and responses would wait for them.
  localparam logic [7:0] CALLS_MAX = 8'(nic_pkg::BUFFERS - 16);
  localparam logic [1:0] IDLE = 2'd0;
  localparam logic [1:0] WAIT = 2'd1;
  localparam logic [1:0] ACT = 2'd2;
  localparam logic [1:0] OF_PACKET = 2'd0;
  localparam logic [1:0] OF_ENTRY = 2'd1;
  localparam logic [1:0] OF_CALL = 2'd2;
  localparam logic [1:0] OF_COMMAND = 2'd3;

  logic [1:0] state_q;
  logic [1:0] source_q;
  logic [nic_pkg::CONNECTION_BITS-1:0] line_q;
  logic denied_q;

  // The event that was chosen, if it is a packet or an entry.
  nic_pkg::packet_t packet_q;
  nic_pkg::packet_t packet;
  nic_pkg::entry_t entry_q;
  nic_pkg::entry_t entry;
  assign packet = packet_q;
  assign entry = entry_q;
  assign packet_method = packet.first[175:160];
  assign packet_payload = packet.first[447:192];

  // The choice. Packets and entries take turns; a call's time-out goes first, as there is one in many cycles at most.
  logic [1:0] source;
  logic chosen;
  always_comb begin
    chosen = 1'b1;
    source = OF_PACKET;
    if (state_q == ACT && (command_valid || due)) chosen = 1'b0;
    else if (command_valid) source = OF_COMMAND;
    else if (due) source = OF_CALL;
    else if (packet_valid && (source_q != OF_PACKET || !entry_valid)) source = OF_PACKET;
    else if (entry_valid) source = OF_ENTRY;
    else if (packet_valid) source = OF_PACKET;
    else chosen = 1'b0;
  end

  // The packet's header.
  logic [3:0] kind;
  logic [7:0] packet_slot;
  logic [15:0] session;
  logic [31:0] token;
  logic [31:0] packet_call;
  logic [15:0] packet_number;
  logic packet_asks;
  logic [31:0] message_bytes;
  logic [15:0] payload_bytes;
  assign kind = packet.first[3:0];
  assign packet_slot = packet.first[15:8];
  assign session = packet.first[31:16];
  assign token = packet.first[63:32];
  assign packet_call = packet.first[95:64];
  assign packet_number = packet.first[111:96];
  assign packet_asks = packet.first[4];
  assign message_bytes = packet.first[159:128];
  assign payload_bytes = packet.bytes - 16'd24;

  // Session management is the host's, but for a Ping.
  function automatic logic is_management(input logic [3:0] packet_kind);
    is_management = packet_kind > nic_pkg::PACKET_RESPONSE && packet_kind != nic_pkg::PACKET_PING;
  endfunction
  logic management;
  assign management = is_management(kind);
  logic without_connection;
  always_comb begin
    case (source)
      OF_PACKET: without_connection = is_management(packet_next.first[3:0]);
      OF_ENTRY: without_connection = entry_next.kind == nic_pkg::ENTRY_RAW || entry_next.kind == nic_pkg::ENTRY_BAD;
      default: without_connection = 1'b0;
    endcase
  end

  logic start;
  assign start = (state_q == IDLE || state_q == ACT) && chosen && transmit_room_for_two && receive_room_for_two && lookup_ready;
  assign lookup = start && !without_connection;
  assign lookup_anew = source == OF_COMMAND && command == nic_pkg::COMMAND_LOAD;
  always_comb begin
    case (source)
      OF_PACKET: lookup_connection = packet_next.first[31:16];
      OF_ENTRY: lookup_connection = entry_next.connection;
      OF_CALL: lookup_connection = call.connection;
      default: lookup_connection = command_connection;
    endcase
  end

  always_ff @(posedge clk) begin
    if (rst) begin
      state_q <= IDLE;
      source_q <= OF_PACKET;
      line_q <= '0;
      denied_q <= 1'b0;
      packet_q <= '0;
      entry_q <= '0;
    end else begin
      denied_q <= packet_denied;
      if (packet_take) packet_q <= packet_next;
      if (entry_take) entry_q <= entry_next;
      if (start) begin
        source_q <= source;
        state_q <= without_connection ? ACT : WAIT;
      end else if (state_q == WAIT && answer) begin
        line_q <= answer_line;
        state_q <= ACT;
      end else if (state_q == ACT) state_q <= IDLE;
    end
  end

  logic act_packet, act_entry, act_call, act_command;
  assign act_packet = state_q == ACT && source_q == OF_PACKET;
  assign act_entry = state_q == ACT && source_q == OF_ENTRY;
  assign act_call = state_q == ACT && source_q == OF_CALL;
  assign act_command = state_q == ACT && source_q == OF_COMMAND;
  assign packet_take = start && source == OF_PACKET;
  assign entry_take = start && source == OF_ENTRY;
  assign due_take = act_call;
  assign command_take = act_command;

  // The connection.
  logic valid;
  logic server;
  logic [3:0] slots;
  logic [47:0] remote;
  logic [15:0] remote_number;
  logic [31:0] remote_token;
  logic [15:0] payload_max;
  assign valid = line_q[nic_pkg::CONNECTION_VALID];
  assign server = line_q[nic_pkg::CONNECTION_SERVER];
  assign slots = (line_q[nic_pkg::CONNECTION_SLOTS+:4] > 4'(nic_pkg::SLOTS)) ? 4'(nic_pkg::SLOTS)
      : line_q[nic_pkg::CONNECTION_SLOTS+:4];
  assign remote = line_q[nic_pkg::CONNECTION_REMOTE+:48];
  assign remote_number = line_q[nic_pkg::CONNECTION_REMOTE_NUMBER+:16];
  assign remote_token = line_q[nic_pkg::CONNECTION_REMOTE_TOKEN+:32];
  assign payload_max = line_q[nic_pkg::CONNECTION_PAYLOAD_MAX+:16];
  assign bucket = line_q[nic_pkg::CONNECTION_BUCKET+:3];
  assign balance = line_q[nic_pkg::CONNECTION_BALANCE+:2];
  assign balance_first = {4'd0, line_q[nic_pkg::CONNECTION_FLOW+:4]};
  assign balance_mask = {4'd0, line_q[nic_pkg::CONNECTION_FLOWS+:4]};

  logic known;
  logic known_server, known_client;
  assign known = valid && line_q[nic_pkg::CONNECTION_LOCAL_TOKEN+:32] == token && remote == packet.remote;
  assign known_server = known && server;
  assign known_client = known && !server;

  // The slot that the event is about.
  logic [2:0] slot;
  logic [2:0] free_slot;
  logic free_valid;
  logic [31:0] slot_call;
  logic [2:0] slot_phase;
  logic [nic_pkg::BUFFER_BITS-1:0] slot_buffer;
  always_comb begin
    case (source_q)
      OF_PACKET: slot = packet_slot[2:0];
      OF_ENTRY: slot = (entry.kind == nic_pkg::ENTRY_REQUEST) ? free_slot : entry.tag[34:32];
      default: slot = call.slot;
    endcase
  end
  assign slot_call = line_q[nic_pkg::CONNECTION_CALLS+32*slot+:32];
  assign slot_phase = line_q[nic_pkg::CONNECTION_PHASES+3*slot+:3];
  assign slot_buffer = line_q[nic_pkg::CONNECTION_BUFFERS+nic_pkg::BUFFER_BITS*slot+:nic_pkg::BUFFER_BITS];

  logic packet_current;
  client_slot client (
      .slots,
      .phases(line_q[nic_pkg::CONNECTION_PHASES+:3*nic_pkg::SLOTS]),
      .free_valid,
      .free_slot,
      .packet_slot,
      .packet_call,
      .slot_call(line_q[nic_pkg::CONNECTION_CALLS+32*packet_slot[2:0]+:32]),
      .current(packet_current)
  );

  // The packet as one of several of its message, and where it is stored.
  logic several;
  logic several_good;
  logic several_last;
  logic [2:0] several_packets;
  logic [7:0] several_line;
  message_shape shape (
      .payload_max,
      .area_lines_log2,
      .number(packet_number),
      .message_bytes,
      .payload_bytes,
      .lines(packet.lines),
      .several,
      .good(several_good),
      .last(several_last),
      .packets(several_packets),
      .line(several_line)
  );

  // A request.
  logic request;
  logic request_good;
  logic [FLOW_BITS-1:0] request_flow;
  logic [6:0] request_room;
  logic [2:0] slot_flow;
  logic slot_admit;
  logic slot_store;
  logic slot_deliver;
  logic slot_acknowledge;
  logic slot_repeat;
  logic slot_deny;
  logic [2:0] server_phase_next;
  logic [31:0] server_call_next;
  logic [4:0] server_here_next;
  logic slot_stale;
  logic slot_forbidden;
  logic slot_no_room;
  logic [1:0] verdict;
  assign request = act_packet && !management && kind == nic_pkg::PACKET_REQUEST && known_server;
  // A request of several packets goes to the flow that its first packet, which has the key, was given to. What was delivered before is
  // asked for again by the connection's first flow.
  assign slot_flow = slot_buffer[5:3];
  // (A NIC of one flow has none of the number that one bit could say.)
  assign request_flow = FLOW_BITS'(FLOWS - 1) & ((packet_call != slot_call) ? balance_flow
      : (slot_phase == nic_pkg::PHASE_RECEIVING) ? slot_flow[FLOW_BITS-1:0] : balance_first[FLOW_BITS-1:0]);
  assign request_room = slot_lines(flow_stride_log2[4*request_flow+:4]);
  assign request_good = packet_slot < {4'd0, slots} && (several ? several_good
      : packet_number == 16'd0 && message_bytes == 32'(payload_bytes) && {1'b0, packet.lines} <= request_room);
  assign verdict = denied_q ? nic_pkg::VERDICT_DENIED
      : !bucket_has_token ? nic_pkg::VERDICT_LIMITED : nic_pkg::VERDICT_PASS;
  server_slot server_decision (
      .phase(slot_phase),
      .slot_call,
      .here({line_q[nic_pkg::CONNECTION_FIFTH+32'(slot)], line_q[nic_pkg::CONNECTION_FOURTH+32'(slot)], slot_buffer[2:0]}),
      .packet_call,
      .several,
      .number(packet_number[2:0]),
      .last(several_last),
      .asks(packet_asks),
      .verdict,
      .credit(credit_spare[request_flow]),
      .admit(slot_admit),
      .store(slot_store),
      .deliver(slot_deliver),
      .acknowledge(slot_acknowledge),
      .repeat_response(slot_repeat),
      .deny(slot_deny),
      .phase_next(server_phase_next),
      .call_next(server_call_next),
      .here_next(server_here_next),
      .stale(slot_stale),
      .forbidden(slot_forbidden),
      .no_room(slot_no_room)
  );

  // What is missing of the message: of a response, with this packet or at a time-out, or of a request.
  logic [6:0] response_here;
  logic [2:0] missing_first, missing_end;
  logic [5:0] missing_beyond;
  logic response_complete;
  assign response_here = call_progress.here | (7'd1 << packet_number[2:0]);
  missing_packets missing (
      .here(act_call ? call_progress.here : response ? response_here : {1'b0, server_here_next, 1'b1}),
      .packets(act_call ? call_progress.packets : several_packets),
      .first(missing_first),
      .run_end(missing_end),
      .beyond(missing_beyond),
      .complete(response_complete)
  );

  // Lines of a slot, by the logarithm; more than a buffer's are not used.
  function automatic logic [6:0] slot_lines(input logic [3:0] log2);
    slot_lines = (log2 > 4'd5) ? 7'd32 : 7'd1 << log2;
  endfunction

  // A response. The call table must agree with the connection's line, which the host could have changed.
  logic response;
  logic call_agrees;
  logic response_current;
  logic response_next;
  logic response_fits;
  logic response_stored;
  logic response_ends;
  assign response = act_packet && !management && kind == nic_pkg::PACKET_RESPONSE && known_client;
  assign call_agrees = call_used && call.connection == session && call.slot == slot && call.call == slot_call;
  assign response_current = packet_current && call_agrees;
  // Packet 0 of a response is taken first, and says its bytes. In a form that cannot be taken, it ends its call. The others come in any order.
  assign response_next = response_current && packet_number < 16'(nic_pkg::MESSAGE_PACKETS) && (call_progress.here == '0
      ? packet_number == 16'd0 : !call_progress.here[packet_number[2:0]] && message_bytes == 32'(call_progress.bytes));
  assign response_stored = response && response_next && several && several_good;
  assign response_fits = several ? several_good : message_bytes == 32'(payload_bytes) &&
      {1'b0, packet.lines} <= slot_lines(flow_stride_log2[4*call.flow[FLOW_BITS-1:0]+:4]);
  assign response_ends = response && response_next && (call_progress.here == '0 || response_fits) && !(response_stored && !response_complete);
  // The client asks for the rest of a response once it has packet 0.
  logic ask_rest;
  assign ask_rest = response_stored && !response_complete && packet_number == 16'd0;
  assign advance = (response_stored && !response_complete) || fragments_wanted;
  assign advance_progress = response_stored
      ? {message_bytes[nic_pkg::MESSAGE_BYTES_BITS-1:0], response_here, several_packets} : call_progress;
  logic credit_return;
  assign credit_return = act_packet && !management && kind == nic_pkg::PACKET_CREDIT_RETURN && known_client;
  // The server has some packets of the request: the host is to give those that follow.
  logic return_whole;
  logic fragments_wanted;
  assign return_whole = packet_number >= 16'(nic_pkg::MESSAGE_PACKETS) ||
      nic_pkg::MESSAGE_BYTES_BITS'(packet_number[2:0]) * nic_pkg::MESSAGE_BYTES_BITS'(payload_max) >= call.message;
  assign fragments_wanted = credit_return && packet_current && call_agrees && call_progress.here == '0 && packet_number != 16'd0 && !return_whole;
  // A client asks for further packets of the response.
  logic response_wanted;
  assign response_wanted = act_packet && kind == nic_pkg::PACKET_REQUEST_FOR_RESPONSE && known_server && packet_slot < {4'd0, slots} &&
      packet_call == slot_call && slot_phase == nic_pkg::PHASE_RESPONDED;
  logic ping;
  assign ping = act_packet && kind == nic_pkg::PACKET_PING && known_server;

  // A packet for the host as it is.
  logic managed;
  logic managed_fits;
  logic managed_room;
  assign managed = act_packet && management;
  assign managed_fits = control_flow < 8'(FLOWS) &&
      {1'b0, packet.lines} < slot_lines(flow_stride_log2[4*control_flow[FLOW_BITS-1:0]+:4]);
  assign managed_room = credit_spare[control_flow[FLOW_BITS-1:0]];

  // A packet of no session here: whoever could be its client is told, with nothing that the packet did not say.
  logic stranger;
  logic to_server, to_client;
  assign to_server = kind == nic_pkg::PACKET_REQUEST || kind == nic_pkg::PACKET_REQUEST_FOR_RESPONSE ||
      kind == nic_pkg::PACKET_PING;
  assign to_client = kind == nic_pkg::PACKET_RESPONSE || kind == nic_pkg::PACKET_CREDIT_RETURN;
  assign stranger = act_packet && !management && !(to_server && known_server) && !(to_client && known_client);

  // An entry.
  logic [7:0] entry_flow_calls;
  logic [7:0] entry_flow_calls_max;
  logic may_begin;
  logic entry_good;
  logic [15:0] entry_error;
  logic [31:0] entry_message;
  assign entry_flow_calls = flow_calls[8*entry.flow[FLOW_BITS-1:0]+:8];
  assign entry_flow_calls_max = flow_calls_max[8*entry.flow[FLOW_BITS-1:0]+:8];
  assign may_begin = free_valid && entry_flow_calls < entry_flow_calls_max && calls < CALLS_MAX;
  entry_check check (
      .entry,
      .valid,
      .server,
      .slots,
      .slot,
      .slot_call,
      .slot_phase,
      .payload_max,
      .may_begin,
      .good(entry_good),
      .error(entry_error),
      .message(entry_message)
  );
  logic entry_request, entry_response;
  assign entry_request = act_entry && entry_good && entry.kind == nic_pkg::ENTRY_REQUEST;
  assign entry_response = act_entry && entry_good && entry.kind == nic_pkg::ENTRY_RESPONSE;

  // A call whose time is up.
  logic call_current;
  logic give_up;
  assign call_current = valid && !server && slot_phase == nic_pkg::PHASE_OUT && slot_call == call.call &&
      slot_buffer == due_index;
  assign give_up = act_call && call_rests && (!call_current || call_tries >= tries_max);
  logic again;
  assign again = act_call && call_rests && call_current && call_tries < tries_max;
  // Once packet 0 of the response is here, what is missing of it is asked for.
  assign ask_again = again && call_progress.here != '0;
  assign send_again = again && call_progress.here == '0;

  logic [nic_pkg::BUFFER_BITS-1:0] packet_call_index;
  assign packet_call_index =
      line_q[nic_pkg::CONNECTION_BUFFERS+nic_pkg::BUFFER_BITS*packet_slot[2:0]+:nic_pkg::BUFFER_BITS];
  always_comb begin
    // In IDLE, the call whose time is up is looked at, for its connection.
    if (state_q == ACT && source_q == OF_PACKET) call_index = packet_call_index;
    else if (state_q == ACT && source_q == OF_ENTRY) call_index = entry.buffer;
    else call_index = due_index;
  end
  assign begin_call = entry_request;
  assign end_call = response_ends || give_up;
  assign at_work = credit_return && packet_current && call_agrees && call_progress.here == '0 && packet_number != 16'd0 && return_whole;
  always_comb begin
    begin_data.flow = entry.flow;
    begin_data.connection = entry.connection;
    begin_data.slot = free_slot;
    begin_data.call = slot_call + 32'd1;
    begin_data.tag = entry.tag;
    begin_data.area = entry.area;
    begin_data.code = entry.code;
    begin_data.bytes = entry.bytes;
    begin_data.message = entry_message[nic_pkg::MESSAGE_BYTES_BITS-1:0];
    begin_data.sum = entry.sum;
    begin_data.lines = entry.lines;
    begin_data.began = cycle;
  end
  assign duration = cycle - call.began;

  // The connection's line after the event.
  logic [2:0] phase_next;
  logic [31:0] call_next;
  always_comb begin
    phase_next = slot_phase;
    call_next = slot_call;
    if (request) begin
      phase_next = server_phase_next;
      call_next = server_call_next;
    end else if (entry_request) begin
      phase_next = nic_pkg::PHASE_OUT;
      call_next = slot_call + 32'd1;
    end else if (entry_response) phase_next = nic_pkg::PHASE_RESPONDED;
    else if (end_call) phase_next = nic_pkg::PHASE_IDLE;
    update_line = line_q;
    update_line[nic_pkg::CONNECTION_CALLS+32*slot+:32] = call_next;
    update_line[nic_pkg::CONNECTION_PHASES+3*slot+:3] = phase_next;
    if (entry_request || request) begin
      update_line[nic_pkg::CONNECTION_BUFFERS+nic_pkg::BUFFER_BITS*slot+:nic_pkg::BUFFER_BITS] =
          entry_request ? entry.buffer : {3'(request_flow), server_here_next[2:0]};
      update_line[nic_pkg::CONNECTION_FOURTH+32'(slot)] = request && server_here_next[3];
      update_line[nic_pkg::CONNECTION_FIFTH+32'(slot)] = request && server_here_next[4];
    end
    if (act_command) begin
      update_line = line_q;
      update_line[nic_pkg::CONNECTION_VALID] = 1'b0;
    end
  end
  assign update = (request && request_good && (slot_deliver || slot_store || slot_deny)) || entry_request || entry_response ||
      response_ends || (give_up && call_current) ||
      (act_command && command == nic_pkg::COMMAND_CLOSE && valid);

  // What is sent.
  logic deny_now;
  logic answers;
  assign deny_now = request && request_good && slot_deny;
  assign answers = deny_now || (request && request_good && slot_acknowledge) || ping || ask_rest;
  transmit_order order (
      .of_entry(act_entry),
      .of_call(act_call),
      .asks(ask_again || ask_rest),
      .asked_first(ask_again ? missing_first : 3'd1),
      .asked_packets(ask_again ? missing_end : several_packets),
      .count((server_phase_next == nic_pkg::PHASE_RECEIVING) ? missing_first : server_here_next[2:0]),
      .beyond((server_phase_next == nic_pkg::PHASE_RECEIVING) ? missing_beyond : 6'd0),
      .entry_message,
      .stranger,
      .ping,
      .deny(deny_now),
      .denied_by_list(server_phase_next == nic_pkg::PHASE_DENIED),
      .now(now[28:0]),
      .packet_remote(packet.remote),
      .packet_session(session),
      .packet_token(token),
      .packet_call,
      .entry,
      .call,
      .call_buffer(due_index),
      .remote,
      .remote_number,
      .remote_token,
      .slot,
      .slot_call,
      .transmit
  );
  assign transmit_valid = (act_entry && entry_good) || again || answers || (stranger && to_server);

  // What is written to a receive ring, and the credit for it. A packet leaves the receive buffer in any case.
  logic deliver_request;
  logic deliver_repeat;
  logic deliver_wanted;
  logic deliver_response;
  logic deliver_managed;
  logic refuse_entry;
  assign deliver_request = request && request_good && slot_deliver;
  assign deliver_repeat = (request && request_good && slot_repeat) || (response_wanted && credit_spare[request_flow]);
  assign deliver_wanted = fragments_wanted && credit_spare[call.flow[FLOW_BITS-1:0]];
  assign deliver_response = response_ends;
  assign deliver_managed = managed && managed_fits && managed_room;
  assign refuse_entry = act_entry && !entry_good;
  receive_order written (
      .of_packet(act_packet),
      .deliver_request,
      .deliver_repeat,
      .deliver_wanted,
      .deliver_response,
      .deliver_managed,
      .refuse_entry,
      .give_up,
      .response_fits,
      .response_wanted,
      .call_current,
      .several,
      .several_packets,
      .store((request && request_good && slot_store) || response_stored),
      .store_address(area_base + (32'({session, response ? call.area : slot}) << area_lines_log2) + 32'(several_line)),
      .now(now[28:0]),
      .control_flow,
      .request_flow(8'(request_flow)),
      .packet,
      .entry,
      .entry_error,
      .call,
      .slot,
      .slot_call,
      .receive
  );
  assign receive_valid = act_packet || refuse_entry || give_up;

  assign credit_take = deliver_request || deliver_repeat || deliver_wanted || deliver_managed;
  // A response and a raw packet do not come back: their entry's credit does.
  assign credit_give = act_entry && entry_good && entry.kind != nic_pkg::ENTRY_REQUEST;
  assign credit_flow = act_entry ? entry.flow[FLOW_BITS-1:0] : receive.flow[FLOW_BITS-1:0];
  assign buffer_give = refuse_entry;
  assign buffer_give_id = entry.buffer;
  assign bucket_spend = request && request_good && slot_admit;
  assign balance_used = bucket_spend;

  assign count_token = stranger;
  assign count_stale = (request && request_good && slot_stale) || (response && !response_stored && !response_ends) ||
      (credit_return && !at_work && !fragments_wanted);
  assign count_protocol = (request && (!request_good || slot_forbidden)) || (managed && !managed_fits) ||
      (act_packet && kind == nic_pkg::PACKET_REQUEST_FOR_RESPONSE && known_server && !response_wanted);
  assign count_room = (request && request_good && slot_no_room) || (response_wanted && !deliver_repeat) ||
      (fragments_wanted && !deliver_wanted) || (managed && managed_fits && !managed_room);
  assign count_refused = refuse_entry;
  assign count_sent = entry_request;
  assign count_delivered = deliver_request;
  assign count_denied = deny_now && server_phase_next == nic_pkg::PHASE_DENIED;
  assign count_limited = deny_now && server_phase_next == nic_pkg::PHASE_LIMITED;
  assign count_repeated = deliver_repeat;
  assign count_completed = deliver_response && response_fits;
  assign count_failed = (deliver_response && !response_fits) || give_up;
  assign count_again = again;

  /* verilator lint_off UNUSEDSIGNAL */
  logic unused;
  assign unused = &{1'b0, packet.first, flow_calls, now[31:29], slot_flow};
  /* verilator lint_on UNUSEDSIGNAL */
endmodule
