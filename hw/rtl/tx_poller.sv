// Takes entries from the flows' transmit rings, each exactly once and in order, into message buffers.
//
// A ring has slots of a fixed number of lines. The first line of a slot begins with a phase bit, 1 in the ring's first lap, 0 in
// the next, and so on: so one look shows whether the host has written the slot. Three ways bring an entry here, behind one port:
// slots that are polled; slots up to a doorbell; lines that the host pushes by MMIO (entries of one line). A batch of slots is
// read at once; the first that is not written ends it.
module tx_poller #(
    parameter int FLOWS = 4,
    parameter int FLOW_BITS = 2,
    parameter int BATCH = 4
) (
    input logic clk,
    input logic rst,
    input logic enable,
    input logic restart,
    input logic [FLOW_BITS-1:0] restart_flow,
    input logic [FLOWS-1:0] flow_enable,
    input logic [FLOWS-1:0] flow_doorbell_mode,
    input logic [32*FLOWS-1:0] flow_base,
    input logic [4*FLOWS-1:0] flow_slots_log2,
    input logic [4*FLOWS-1:0] flow_stride_log2,
    input logic [16*FLOWS-1:0] flow_doorbell,
    // Entries taken since each flow started.
    output logic [16*FLOWS-1:0] flow_taken,
    // A credit of the flow's receive ring comes with every entry.
    input logic [FLOWS-1:0] credit_available,
    output logic credit_take,
    output logic [FLOW_BITS-1:0] credit_flow,
    // Message buffers.
    input logic buffer_valid,
    input logic [nic_pkg::BUFFER_BITS-1:0] buffer_id,
    output logic buffer_take,
    output logic buffer_write,
    output logic [nic_pkg::BUFFER_BITS+nic_pkg::BUFFER_LINE_BITS-1:0] buffer_address,
    output logic [511:0] buffer_data,
    // Host memory.
    output logic read,
    input logic read_ready,
    output logic [31:0] read_address,
    input logic data_valid,
    input logic [511:0] data,
    // Lines that the host pushes.
    input logic push_valid,
    input logic [FLOW_BITS-1:0] push_flow,
    input logic [511:0] push_line,
    output logic push_take,
    // What was taken.
    output logic entry_valid,
    input logic entry_ready,
    output nic_pkg::entry_t entry
);
  localparam logic [1:0] PICK = 2'd0;
  localparam logic [1:0] HEADERS = 2'd1;
  localparam logic [1:0] BODY = 2'd2;

  localparam int BUFFER_COUNT_BITS = 6;

  logic [1:0] state_q;
  logic [FLOW_BITS-1:0] flow_q;
  logic [15:0] taken_q[FLOWS];
  // Reads of a batch of headers, or of the lines after a header: to issue, issued, answered.
  logic [BUFFER_COUNT_BITS-1:0] wanted_q;
  logic [BUFFER_COUNT_BITS-1:0] issued_q;
  logic [BUFFER_COUNT_BITS-1:0] answered_q;
  // No further entry of this batch is taken.
  logic stopped_q;
  // The entry whose other lines are being read, if `body_q`.
  logic body_q;
  nic_pkg::entry_t entry_q;

  // The flow's ring.
  logic [31:0] base;
  logic [3:0] slots_log2;
  logic [3:0] stride_log2;
  logic [15:0] slot_mask;
  logic [15:0] taken;
  assign base = flow_base[32*flow_q+:32];
  assign slots_log2 = flow_slots_log2[4*flow_q+:4];
  assign stride_log2 = flow_stride_log2[4*flow_q+:4];
  assign slot_mask = (16'd1 << slots_log2) - 16'd1;
  assign taken = taken_q[flow_q];

  // The line that has come: a header, by either way.
  logic push_now;
  logic header_now;
  logic [511:0] header;
  logic [FLOW_BITS-1:0] header_flow;
  logic expected_phase;
  logic written;
  logic take_now;
  assign push_now = state_q == PICK && enable && push_valid;
  assign push_take = push_now && (take_now || !flow_enable[push_flow]);
  assign header_now = push_now || (state_q == HEADERS && data_valid);
  assign header = push_now ? push_line : data;
  assign header_flow = push_now ? push_flow : flow_q;
  // The lap's parity: bit `slots_log2` of the count.
  assign expected_phase = !taken[slots_log2];
  assign written = push_now || (!stopped_q && header[0] == expected_phase);
  assign take_now = header_now && written && flow_enable[header_flow] && buffer_valid && entry_ready &&
      credit_available[header_flow];

  // What the header says, checked: a length that neither a slot nor a buffer holds makes the entry a bad one.
  logic [3:0] kind;
  logic [15:0] bytes;
  logic raw;
  logic known;
  logic [15:0] lines_wide;
  logic [15:0] lines_max;
  logic bad;
  assign kind = header[7:4];
  assign bytes = header[31:16];
  assign raw = kind == nic_pkg::ENTRY_RAW;
  assign known = kind == nic_pkg::ENTRY_REQUEST || kind == nic_pkg::ENTRY_RESPONSE || kind == nic_pkg::ENTRY_FRAGMENT || raw;
  assign lines_wide = raw ? 16'((17'(bytes) + 17'd127) >> 6) : 16'((17'(bytes) + 17'd87) >> 6);
  assign lines_max = push_now ? 16'd1 :
      (stride_log2 > 4'd5) ? 16'(nic_pkg::BUFFER_LINES) : (16'd1 << stride_log2);
  assign bad = !known || lines_wide > lines_max || (raw && bytes < 16'd16);

  nic_pkg::entry_t header_entry;
  always_comb begin
    header_entry.kind = bad ? nic_pkg::ENTRY_BAD : kind;
    header_entry.flow = 8'(header_flow);
    header_entry.buffer = buffer_id;
    header_entry.lines = bad ? 6'd1 : lines_wide[5:0];
    header_entry.connection = header[47:32];
    header_entry.code = header[63:48];
    header_entry.bytes = bytes;
    header_entry.tag = header[127:64];
    header_entry.remote = header[175:128];
    header_entry.area = header[10:8];
    header_entry.sum = header_sum;
  end

  // Bytes of this line that are the message's, and their sum. The head is not the payload's; of a raw entry, neither is the rest
  // of the first line.
  logic [15:0] line_bytes;
  logic [511:0] line_kept;
  logic [511:0] line_summed;
  logic [15:0] sum_before;
  logic [15:0] sum_after;
  logic [15:0] header_sum;
  logic body_raw;
  assign body_raw = entry_q.kind == nic_pkg::ENTRY_RAW;
  always_comb begin
    if (state_q == BODY) begin
      // Line k begins 64 k bytes into the packet, of a raw entry 64 (k - 1).
      line_bytes = body_raw ? entry_q.bytes - {4'd0, answered_q, 6'd0}
          : entry_q.bytes + 16'd24 - {4'd0, answered_q + 6'd1, 6'd0};
      line_summed = line_kept;
      sum_before = entry_q.sum;
    end else begin
      line_bytes = raw ? 16'd64 : bytes + 16'd24;
      line_summed = raw ? '0 : {line_kept[511:192], 192'd0};
      sum_before = '0;
    end
  end
  byte_mask mask (
      .bytes(line_bytes),
      .line(header_or_body),
      .kept(line_kept)
  );
  line_sum adder (
      .start(sum_before),
      .line(line_summed),
      .sum(sum_after)
  );
  logic [511:0] header_or_body;
  assign header_or_body = (state_q == BODY) ? data : header;
  assign header_sum = sum_after;

  logic body_line;
  logic body_last;
  assign body_line = state_q == BODY && data_valid;
  assign body_last = body_line && answered_q + 6'd1 == wanted_q;

  assign credit_take = take_now;
  assign credit_flow = header_flow;
  assign buffer_take = take_now;
  assign buffer_write = take_now || body_line;
  assign buffer_address = body_line ? {entry_q.buffer, answered_q[4:0] + 5'd1} : {buffer_id, 5'd0};
  assign buffer_data = line_kept;
  assign entry_valid = body_last || (take_now && header_entry.lines == 6'd1);
  always_comb begin
    entry = body_last ? entry_q : header_entry;
    if (body_last) entry.sum = sum_after;
  end

  logic [15:0] read_slot;
  assign read = (state_q == HEADERS || state_q == BODY) && issued_q != wanted_q;
  assign read_slot = (state_q == BODY) ? taken & slot_mask : (batch_first_q + 16'(issued_q)) & slot_mask;
  assign read_address = base + (32'(read_slot) << stride_log2) +
      ((state_q == BODY) ? 32'(issued_q) + 32'd1 : 32'd0);
  logic [15:0] batch_first_q;

  // After the entry that ends a batch, no further header is read.
  logic [BUFFER_COUNT_BITS-1:0] wanted_now;
  assign wanted_now = (take_now && header_entry.lines == 6'd1) ? wanted_q
      : issued_q + BUFFER_COUNT_BITS'(read && read_ready);

  // The next flow to look at, and how many slots of it.
  logic [FLOW_BITS-1:0] flow_next;
  logic [15:0] next_ahead;
  logic next_worth;
  logic [BUFFER_COUNT_BITS-1:0] next_wanted;
  assign flow_next = (flow_q == FLOW_BITS'(FLOWS - 1)) ? '0 : flow_q + 1'b1;
  assign next_ahead = flow_doorbell[16*flow_next+:16] - taken_q[flow_next];
  assign next_worth = flow_enable[flow_next] && credit_available[flow_next] && buffer_valid && entry_ready &&
      (!flow_doorbell_mode[flow_next] || next_ahead != 16'd0);
  assign next_wanted = (flow_doorbell_mode[flow_next] && next_ahead < 16'(BATCH)) ? 6'(next_ahead) : 6'(BATCH);

  always_comb begin
    for (int i = 0; i < FLOWS; i++) flow_taken[16*i+:16] = taken_q[i];
  end

  logic entry_taken;
  assign entry_taken = entry_valid && !push_now;

  always_ff @(posedge clk) begin
    if (rst) begin
      state_q <= PICK;
      flow_q <= '0;
      wanted_q <= '0;
      issued_q <= '0;
      answered_q <= '0;
      stopped_q <= 1'b0;
      body_q <= 1'b0;
      entry_q <= '0;
      batch_first_q <= '0;
      for (int i = 0; i < FLOWS; i++) taken_q[i] <= '0;
    end else begin
      if (entry_taken) taken_q[flow_q] <= taken + 16'd1;
      case (state_q)
        PICK: begin
          issued_q <= '0;
          answered_q <= '0;
          stopped_q <= 1'b0;
          body_q <= 1'b0;
          // A pushed line that cannot be taken now keeps nobody from the rings.
          if (enable && !push_take) begin
            flow_q <= flow_next;
            if (next_worth) begin
              state_q <= HEADERS;
              wanted_q <= next_wanted;
              batch_first_q <= taken_q[flow_next];
            end
          end
        end
        HEADERS: begin
          if (read && read_ready) issued_q <= issued_q + 6'd1;
          if (data_valid) begin
            answered_q <= answered_q + 6'd1;
            if (!take_now) stopped_q <= 1'b1;
            else if (header_entry.lines != 6'd1) begin
              stopped_q <= 1'b1;
              body_q <= 1'b1;
              entry_q <= header_entry;
            end
            wanted_q <= wanted_now;
            if (answered_q + 6'd1 == wanted_now) begin
              issued_q <= '0;
              answered_q <= '0;
              if (body_q || (take_now && header_entry.lines != 6'd1)) begin
                state_q <= BODY;
                wanted_q <= (body_q ? entry_q.lines : header_entry.lines) - 6'd1;
              end else state_q <= PICK;
            end
          end
        end
        default: begin
          if (read && read_ready) issued_q <= issued_q + 6'd1;
          if (data_valid) begin
            answered_q <= answered_q + 6'd1;
            entry_q.sum <= sum_after;
            if (body_last) state_q <= PICK;
          end
        end
      endcase
      // A flow that starts anew while a batch of it is read: what comes of that batch is not taken.
      if (restart) begin
        taken_q[restart_flow] <= '0;
        if (restart_flow == flow_q) stopped_q <= 1'b1;
      end
    end
  end

  /* verilator lint_off UNUSEDSIGNAL */
  logic unused;
  assign unused = &{1'b0, header[3:1], header[15:11], lines_wide[15:6]};
  /* verilator lint_on UNUSEDSIGNAL */
endmodule
