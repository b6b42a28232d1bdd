// Takes entries from the flows' transmit rings, each exactly once and in order, into message buffers.
//
// A ring has slots of a fixed number of lines. The first line of a slot begins with a phase bit, 1 in the ring's first lap, 0 in
// the next, and so on: so one look shows whether the host has written the slot. Three ways bring an entry here, behind one port:
// slots that are polled; slots up to a doorbell; lines that the host pushes by MMIO (entries of one line). A batch of slots is
// read at once; the first that is not written ends it.
//
// Every flow has a batch of its own under way, and lines are read for the flows in turn: so a flow waits for one line of each other,
// and never for another's batch. Lines that are pushed go between those that come, and reads wait for them in turn.
module tx_poller #(
    parameter int FLOWS = 4,
    parameter int FLOW_BITS = 2,
    parameter int BATCH = 4,
    // Reads that can be out, as a logarithm, and of one flow: memory answers in order, so what one has out the others wait for.
    parameter int READS_LOG2 = 5,
    parameter int FLOW_READS = 5 * (1 << READS_LOG2) / 8
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
    output logic [nic_pkg::LINE_BITS-1:0] buffer_data,
    // Host memory.
    output logic read,
    input logic read_ready,
    output logic [31:0] read_address,
    input logic data_valid,
    input logic [nic_pkg::LINE_BITS-1:0] data,
    // Lines that the host pushes.
    input logic push_valid,
    input logic [FLOW_BITS-1:0] push_flow,
    input logic [nic_pkg::LINE_BITS-1:0] push_line,
    output logic push_take,
    // What was taken. Ready says that there is room for it, and beside it for an entry of each flow whose lines are being read.
    output logic entry_valid,
    input logic entry_ready,
    output nic_pkg::entry_t entry
);
  localparam logic [1:0] IDLE = 2'd0;
  localparam logic [1:0] HEADERS = 2'd1;
  localparam logic [1:0] BODY = 2'd2;

  localparam int BUFFER_COUNT_BITS = 6;

  // Of each flow: a batch of headers, or the lines after a header.
  logic [1:0] state_q[FLOWS];
  logic [15:0] taken_q[FLOWS];
  logic [15:0] batch_first_q[FLOWS];
  // Reads to issue, issued, answered.
  logic [BUFFER_COUNT_BITS-1:0] wanted_q[FLOWS];
  logic [BUFFER_COUNT_BITS-1:0] issued_q[FLOWS];
  logic [BUFFER_COUNT_BITS-1:0] answered_q[FLOWS];
  // No further entry of this batch is taken.
  logic [FLOWS-1:0] stopped_q;
  // The entry whose other lines are to be read, if there is one.
  logic [FLOWS-1:0] body_q;
  // (As bits: yosys knows no arrays of structures.)
  logic [$bits(entry)-1:0] entry_q[FLOWS];
  // The sum of its payload as far as it has come.
  logic [15:0] sum_q[FLOWS];
  // The flow has started anew since the batch began.
  logic [FLOWS-1:0] stale_q;

  // Who waits for each read that is out.
  logic waiting_ready;
  logic waiting_valid;
  logic [FLOW_BITS-1:0] data_flow;
  logic data_now;
  assign data_now = data_valid && waiting_valid;

  // The line that has come: a header, by either way.
  logic push_now;
  logic header_now;
  logic [nic_pkg::LINE_BITS-1:0] header;
  logic [FLOW_BITS-1:0] header_flow;
  logic [15:0] taken;
  logic [3:0] slots_log2;
  logic [3:0] stride_log2;
  logic expected_phase;
  logic written;
  logic can_take;
  logic take_now;
  assign push_now = enable && push_valid && !data_valid;
  assign push_take = push_now && (take_now || !flow_enable[push_flow]);
  assign header_now = push_now || (data_now && state_q[data_flow] == HEADERS);
  assign header = push_now ? push_line : data;
  assign header_flow = data_now ? data_flow : push_flow;
  assign taken = taken_q[data_flow];
  assign slots_log2 = flow_slots_log2[4*data_flow+:4];
  assign stride_log2 = flow_stride_log2[4*data_flow+:4];
  // The lap's parity: bit `slots_log2` of the count.
  assign expected_phase = !taken[slots_log2];
  assign written = push_now || (!stopped_q[data_flow] && header[0] == expected_phase);
  assign can_take = flow_enable[header_flow] && buffer_valid && entry_ready && credit_available[header_flow];
  assign take_now = header_now && written && can_take;

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
  assign lines_wide = raw ? 16'((17'(bytes) + 17'(2 * nic_pkg::LINE_BYTES - 1)) >> nic_pkg::LINE_BYTES_LOG2)
      : 16'((17'(bytes) + 17'(24 + nic_pkg::LINE_BYTES - 1)) >> nic_pkg::LINE_BYTES_LOG2);
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
  logic [nic_pkg::LINE_BITS-1:0] line_kept;
  logic [nic_pkg::LINE_BITS-1:0] line_summed;
  logic [15:0] sum_before;
  logic [15:0] sum_after;
  logic [15:0] header_sum;
  logic body_raw;
  nic_pkg::entry_t body_entry;
  logic [BUFFER_COUNT_BITS-1:0] answered;
  assign body_entry = entry_q[data_flow];
  assign answered = answered_q[data_flow];
  assign body_raw = body_entry.kind == nic_pkg::ENTRY_RAW;
  always_comb begin
    if (body_line) begin
      // Line k begins k lines into the packet, of a raw entry k - 1.
      line_bytes = body_raw ? body_entry.bytes - (16'(answered) << nic_pkg::LINE_BYTES_LOG2)
          : body_entry.bytes + 16'd24 - ((16'(answered) + 16'd1) << nic_pkg::LINE_BYTES_LOG2);
      line_summed = line_kept;
      sum_before = sum_q[data_flow];
    end else begin
      line_bytes = raw ? 16'(nic_pkg::LINE_BYTES) : bytes + 16'd24;
      line_summed = raw ? '0 : {line_kept[nic_pkg::LINE_BITS-1:nic_pkg::HEAD_BITS], nic_pkg::HEAD_BITS'(0)};
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
  logic [nic_pkg::LINE_BITS-1:0] header_or_body;
  assign header_or_body = body_line ? data : header;
  assign header_sum = sum_after;

  logic body_line;
  logic body_last;
  assign body_line = data_now && state_q[data_flow] == BODY;
  assign body_last = body_line && answered + 6'd1 == wanted_q[data_flow];

  assign credit_take = take_now;
  assign credit_flow = header_flow;
  assign buffer_take = take_now;
  assign buffer_write = take_now || body_line;
  assign buffer_address = body_line ? {body_entry.buffer, answered[4:0] + 5'd1} : {buffer_id, 5'd0};
  assign buffer_data = line_kept;
  assign entry_valid = body_last || (take_now && header_entry.lines == 6'd1);
  always_comb begin
    entry = header_entry;
    if (body_last) begin
      entry = body_entry;
      entry.sum = sum_after;
      // Its lines were not all those that the host meant.
      if (stale_q[data_flow]) entry.kind = nic_pkg::ENTRY_BAD;
    end
  end

  // Whose line is read next: flows that want lines have their turn one after the other.
  logic [FLOWS-1:0] wants;
  logic [FLOW_BITS-1:0] turn_q;
  logic [FLOW_BITS-1:0] reader;
  logic reading_body;
  logic [15:0] read_slot;
  logic [15:0] read_count;
  logic [3:0] reader_stride_log2;
  always_comb begin
    for (int i = 0; i < FLOWS; i++)
      wants[i] = state_q[i] != IDLE && issued_q[i] != wanted_q[i] && issued_q[i] - answered_q[i] < BUFFER_COUNT_BITS'(FLOW_READS);
    reader = turn_q;
    for (int i = FLOWS; i > 0; i--) begin
      if (wants[(turn_q+FLOW_BITS'(i))&FLOW_BITS'(FLOWS-1)]) reader = (turn_q + FLOW_BITS'(i)) & FLOW_BITS'(FLOWS - 1);
    end
  end
  // A pushed line that can be taken waits for a cycle in which no line comes: reads leave one, each other time.
  logic pushed_q;
  assign read = wants != '0 && waiting_ready && (!push_valid || pushed_q || !can_push);
  logic can_push;
  assign can_push = enable && flow_enable[push_flow] && buffer_valid && entry_ready && credit_available[push_flow];
  assign reading_body = state_q[reader] == BODY;
  assign read_count = reading_body ? taken_q[reader] : batch_first_q[reader] + 16'(issued_q[reader]);
  assign read_slot = read_count & ((16'd1 << flow_slots_log2[4*reader+:4]) - 16'd1);
  assign reader_stride_log2 = flow_stride_log2[4*reader+:4];
  assign read_address = flow_base[32*reader+:32] + (32'(read_slot) << reader_stride_log2) +
      (reading_body ? 32'(issued_q[reader]) + 32'd1 : 32'd0);
  logic issue;
  assign issue = read && read_ready;
  /* verilator lint_off PINCONNECTEMPTY */
  fifo #(
      .WIDTH(FLOW_BITS),
      .DEPTH_LOG2(READS_LOG2)
  ) waiting (
      .clk,
      .rst,
      .push(issue),
      .push_data(reader),
      .push_ready(waiting_ready),
      .pop(data_valid),
      .pop_valid(waiting_valid),
      .pop_data(data_flow),
      .level()
  );
  /* verilator lint_on PINCONNECTEMPTY */

  // After the entry that ends a batch, no further header is read.
  logic [BUFFER_COUNT_BITS-1:0] wanted_now;
  assign wanted_now = (take_now && header_entry.lines == 6'd1) ? wanted_q[data_flow]
      : issued_q[data_flow] + BUFFER_COUNT_BITS'(issue && reader == data_flow);

  // Which flows are worth a look, and how many slots of them.
  logic [FLOWS-1:0] worth;
  logic [15:0] ahead[FLOWS];
  always_comb begin
    for (int i = 0; i < FLOWS; i++) begin
      ahead[i] = flow_doorbell[16*i+:16] - taken_q[i];
      worth[i] = enable && flow_enable[i] && credit_available[i] && buffer_valid && entry_ready &&
          (!flow_doorbell_mode[i] || ahead[i] != 16'd0);
      flow_taken[16*i+:16] = taken_q[i];
    end
  end

  always_ff @(posedge clk) begin
    if (rst) begin
      turn_q <= '0;
      pushed_q <= 1'b0;
      stopped_q <= '0;
      body_q <= '0;
      stale_q <= '0;
      for (int i = 0; i < FLOWS; i++) begin
        state_q[i] <= IDLE;
        taken_q[i] <= '0;
        batch_first_q[i] <= '0;
        wanted_q[i] <= '0;
        issued_q[i] <= '0;
        answered_q[i] <= '0;
        entry_q[i] <= '0;
        sum_q[i] <= '0;
      end
    end else begin
      for (int i = 0; i < FLOWS; i++) begin
        if (state_q[i] == IDLE && worth[i]) begin
          issued_q[i] <= '0;
          answered_q[i] <= '0;
          stopped_q[i] <= 1'b0;
          body_q[i] <= 1'b0;
          stale_q[i] <= 1'b0;
          batch_first_q[i] <= taken_q[i];
          wanted_q[i] <= (flow_doorbell_mode[i] && ahead[i] < 16'(BATCH)) ? 6'(ahead[i]) : 6'(BATCH);
          state_q[i] <= HEADERS;
        end
      end
      if (push_take) pushed_q <= 1'b1;
      if (issue) begin
        pushed_q <= 1'b0;
        turn_q <= reader;
        issued_q[reader] <= issued_q[reader] + 6'd1;
      end
      if (data_now) begin
        answered_q[data_flow] <= answered + 6'd1;
        if (state_q[data_flow] == BODY) begin
          sum_q[data_flow] <= sum_after;
          if (body_last) state_q[data_flow] <= IDLE;
        end else begin
          if (!take_now) stopped_q[data_flow] <= 1'b1;
          else if (header_entry.lines != 6'd1) begin
            stopped_q[data_flow] <= 1'b1;
            body_q[data_flow] <= 1'b1;
            entry_q[data_flow] <= header_entry;
            sum_q[data_flow] <= header_sum;
          end
          wanted_q[data_flow] <= wanted_now;
          if (answered + 6'd1 == wanted_now) begin
            issued_q[data_flow] <= '0;
            answered_q[data_flow] <= '0;
            if (body_q[data_flow] || (take_now && header_entry.lines != 6'd1)) begin
              state_q[data_flow] <= BODY;
              wanted_q[data_flow] <= (body_q[data_flow] ? body_entry.lines : header_entry.lines) - 6'd1;
            end else state_q[data_flow] <= IDLE;
          end
        end
      end
      if (entry_valid && data_now && !stale_q[data_flow]) taken_q[data_flow] <= taken + 16'd1;
      // A flow that starts anew while a batch of it is read: what comes of that batch is not taken.
      if (restart) begin
        taken_q[restart_flow] <= '0;
        stopped_q[restart_flow] <= 1'b1;
        stale_q[restart_flow] <= 1'b1;
        // One that begins in this cycle begins with the next.
        if (state_q[restart_flow] == IDLE) state_q[restart_flow] <= IDLE;
      end
    end
  end

  /* verilator lint_off UNUSEDSIGNAL */
  logic unused;
  assign unused = &{1'b0, header[3:1], header[15:11], lines_wide[15:6]};
  /* verilator lint_on UNUSEDSIGNAL */
endmodule
