// Sends packets: puts the head in front of what is in a message buffer, and the check into the head where packets carry one.
module packet_tx (
    input logic clk,
    input logic rst,
    input logic checking,
    input logic command_valid,
    output logic command_take,
    input nic_pkg::transmit_t command,
    // The message buffers, read with a cycle's delay.
    output logic [nic_pkg::BUFFER_BITS+nic_pkg::BUFFER_LINE_BITS-1:0] buffer_address,
    input logic [nic_pkg::LINE_BITS-1:0] buffer_data,
    // The packet has left its buffer, which is free, or the call's still.
    output logic done,
    output logic done_release,
    output logic [nic_pkg::BUFFER_BITS-1:0] done_buffer,
    // To the wire.
    output logic wire_valid,
    input logic wire_ready,
    output logic [nic_pkg::LINE_BITS-1:0] wire_data,
    output logic [nic_pkg::LINE_BYTES_LOG2:0] wire_bytes,
    output logic wire_last,
    output logic [47:0] wire_remote,
    output logic count_sent
);
  logic sending_q;
  logic [5:0] line_q;
  logic [15:0] check_q;

  // The check: over the head, with zero in place of the check, and the payload, whose sum is known.
  logic [15:0] head_sum;
  logic [15:0] check;
  line_sum adder (
      .start(command.sum),
      .line(command.raw ? '0 : nic_pkg::LINE_BITS'(command.head)),
      .sum(head_sum)
  );
  assign check = !checking ? 16'd0 : (head_sum == 16'hffff) ? 16'hffff : ~head_sum;

  logic [5:0] line_last;
  logic [15:0] packet_bytes;
  logic [15:0] bytes_left;
  logic beat;
  logic [5:0] line_next;
  // A raw packet begins in the buffer's second line.
  assign line_last = command.lines - (command.raw ? 6'd2 : 6'd1);
  assign packet_bytes = command.raw ? command.bytes : command.bytes + 16'(command.head_bytes);
  assign bytes_left = packet_bytes - (16'(line_q) << nic_pkg::LINE_BYTES_LOG2);
  assign beat = sending_q && wire_ready;
  // Before a packet begins, its first line is read.
  assign line_next = !sending_q ? 6'd0 : beat ? line_q + 6'd1 : line_q;
  assign buffer_address = {command.buffer, line_next[4:0] + (command.raw ? 5'd1 : 5'd0)};

  assign wire_valid = sending_q;
  assign wire_last = line_q == line_last;
  assign wire_bytes = wire_last ? bytes_left[nic_pkg::LINE_BYTES_LOG2:0] : (nic_pkg::LINE_BYTES_LOG2 + 1)'(nic_pkg::LINE_BYTES);
  assign wire_remote = command.remote;
  always_comb begin
    wire_data = command.payload ? buffer_data : '0;
    if (line_q == 6'd0) begin
      if (!command.raw) wire_data[191:0] = command.head;
      // The host leaves the field zero in what it gives as it is to be.
      wire_data[127:112] = check_q;
    end
  end

  assign command_take = beat && wire_last;
  assign done = command_take && command.payload;
  assign done_release = command.release_buffer;
  assign done_buffer = command.buffer;
  assign count_sent = command_take;

  always_ff @(posedge clk) begin
    if (rst) begin
      sending_q <= 1'b0;
      line_q <= '0;
      check_q <= '0;
    end else if (!sending_q) begin
      // A cycle to read the first line, and to add up the check.
      sending_q <= command_valid;
      line_q <= '0;
      check_q <= check;
    end else if (beat) begin
      line_q <= line_q + 6'd1;
      if (wire_last) sending_q <= 1'b0;
    end
  end

  /* verilator lint_off UNUSEDSIGNAL */
  logic unused;
  assign unused = &{1'b0, bytes_left[15:nic_pkg::LINE_BYTES_LOG2+1], line_next[5]};
  /* verilator lint_on UNUSEDSIGNAL */
endmodule
