// transport_core: no request passes without the verdict on itself; each packet is taken out of the receive buffer once; every credit that an
// event brings or takes is accounted for. The connection's line, the call table, packets and entries are any at all; what waits in
// a queue stays as it is until it is taken.
module transport_core_proof (
    input logic clk,
    input logic rst,
    input logic [31:0] now,
    input logic [31:0] cycle,
    input logic packet_valid,
    input nic_pkg::packet_t packet,
    input logic entry_valid,
    input nic_pkg::entry_t entry,
    input logic command_valid,
    input logic [15:0] command_connection,
    input logic [1:0] command,
    input logic lookup_ready,
    input logic answer,
    input logic [511:0] answer_line,
    input logic packet_denied,
    input logic bucket_has_token,
    input logic [0:0] balance_flow,
    input logic [1:0] credit_spare,
    input nic_pkg::call_t call,
    input logic call_used,
    input logic call_rests,
    input logic [3:0] call_tries,
    input logic due,
    input logic [nic_pkg::BUFFER_BITS-1:0] due_index,
    input logic [15:0] flow_calls,
    input logic [7:0] calls,
    input logic transmit_ready,
    input logic receive_ready
);
  logic packet_take;
  logic entry_take;
  logic command_take;
  logic lookup;
  logic [15:0] lookup_connection;
  logic lookup_anew;
  logic update;
  logic [511:0] update_line;
  logic [2:0] bucket;
  logic bucket_spend;
  logic [1:0] balance;
  logic [7:0] balance_first;
  logic [7:0] balance_mask;
  logic balance_used;
  logic credit_take;
  logic credit_give;
  logic [0:0] credit_flow;
  logic begin_call;
  logic [nic_pkg::BUFFER_BITS-1:0] call_index;
  nic_pkg::call_t begin_data;
  logic end_call;
  logic send_again;
  logic at_work;
  logic due_take;
  logic buffer_give;
  logic transmit_valid;
  nic_pkg::transmit_t transmit;
  logic receive_valid;
  nic_pkg::receive_t receive;
  logic count_token, count_stale, count_protocol, count_room, count_refused, count_sent, count_delivered;
  logic count_denied, count_limited, count_repeated, count_completed, count_failed, count_again;
  logic [31:0] duration;
  transport_core #(
      .FLOWS(2),
      .FLOW_BITS(1)
  ) dut (
      .tries_max(4'd3),
      .control_flow(8'd0),
      .flow_stride_log2(8'h44),
      .flow_calls_max(16'h0808),
      .*
  );

  logic packet_waits_q = 1'b0;
  nic_pkg::packet_t packet_q;
  logic denied_q;
  logic entry_waits_q = 1'b0;
  nic_pkg::entry_t entry_q;
  logic due_waits_q = 1'b0;
  logic [nic_pkg::BUFFER_BITS-1:0] due_index_q;
  logic orders_waited_q = 1'b0;
  logic transmit_ready_q;
  logic receive_ready_q;
  logic [3:0] host_kind;
  assign host_kind = receive.head[7:4];
  logic delivered;
  assign delivered = receive_valid && receive.deliver;
  initial assume (rst);
  always_ff @(posedge clk) begin
    packet_waits_q <= packet_valid && !packet_take && !rst;
    packet_q <= packet;
    denied_q <= packet_denied;
    entry_waits_q <= entry_valid && !entry_take && !rst;
    entry_q <= entry;
    due_waits_q <= due && !due_take && !rst;
    due_index_q <= due_index;
    orders_waited_q <= !transmit_valid && !receive_valid && !rst;
    transmit_ready_q <= transmit_ready;
    receive_ready_q <= receive_ready;
    // What waits stays, and what the access list says of it follows from it.
    if (packet_waits_q) assume (packet_valid && packet == packet_q && packet_denied == denied_q);
    if (entry_waits_q) assume (entry_valid && entry == entry_q);
    if (due_waits_q) assume (due && due_index == due_index_q);
    // Room for orders stays until one is given.
    if (orders_waited_q) assume ((transmit_ready || !transmit_ready_q) && (receive_ready || !receive_ready_q));
    if (!rst) begin
      // Orders are given only with room for them, and events taken only when they are there, one at a time.
      if (transmit_valid) assert (transmit_ready);
      if (receive_valid) assert (receive_ready);
      if (packet_take) assert (packet_valid);
      if (entry_take) assert (entry_valid);
      assert (2'(packet_take) + 2'(entry_take) + 2'(due_take) <= 2'd1);
      // Every packet leaves the receive buffer, whole, once.
      if (packet_take) assert (receive_valid && receive.lines == packet.lines);
      if (receive_valid && !packet_take) assert (receive.lines == 6'd0 && receive.deliver);
      // No request without the verdict on itself.
      if (delivered && host_kind == nic_pkg::ENTRY_REQUEST) begin
        assert (packet_take && !packet_denied && bucket_has_token && bucket_spend);
        assert (packet.first[3:0] == nic_pkg::PACKET_REQUEST);
        assert (update);
      end
      // An entry's credit is kept for the call's end, given back, or used for the refusal.
      if (entry_take) assert (2'(begin_call) + 2'(credit_give) + 2'(delivered) == 2'd1);
      if (!entry_take) assert (!begin_call && !credit_give);
      // What a call's end writes uses the call's credit; what comes from the wire takes one, if it is shown.
      if (end_call) assert (delivered && !credit_take && receive.flow == call.flow);
      if (packet_take && delivered) assert (credit_take != end_call);
      if (credit_take) assert (delivered && credit_spare[credit_flow] && receive.flow[0] == credit_flow);
      if (due_take && delivered) assert (end_call);
      // A buffer is kept by a call, given to the transmitter, or given back.
      if (entry_take) assert (2'(begin_call) + 2'(transmit_valid && transmit.release_buffer) + 2'(buffer_give) == 2'd1);
      if (!entry_take && transmit_valid) assert (!transmit.release_buffer);
    end
  end
endmodule
