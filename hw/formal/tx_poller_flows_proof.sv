// tx_poller with two flows, whose reads are mixed: every entry is its own flow's, taken once and in order, with its own lines. Rings of 4
// slots of two lines, batches of 2; both hosts write whenever they have room, memory answers in order, whenever it likes.
module tx_poller_flows_proof (
    input logic clk,
    input logic rst,
    input logic [1:0] host_writes,
    input logic [1:0] host_two_lines,
    input logic answers,
    input logic read_ready,
    input logic buffer_valid,
    input logic entry_ready,
    input logic [1:0] credit_available
);
  (* anyconst *) logic [1:0] flow_doorbell_mode;
  logic [31:0] flow_taken;
  logic credit_take;
  logic [0:0] credit_flow;
  logic buffer_take;
  logic buffer_write;
  logic [10:0] buffer_address;
  logic [511:0] buffer_data;
  logic read;
  logic [31:0] read_address;
  logic data_valid;
  logic [511:0] data;
  logic push_take;
  logic entry_valid;
  nic_pkg::entry_t entry;

  // Of each flow: entries written, and of each of the last 4 whether it has a second line.
  logic [7:0] written_q[2];
  logic [3:0] two_q[2];
  logic [7:0] taken_q[2];
  tx_poller #(
      .FLOWS(2),
      .FLOW_BITS(1),
      .BATCH(2),
      .READS_LOG2(2)
  ) dut (
      .enable(1'b1),
      .restart(1'b0),
      .restart_flow(1'b0),
      .flow_enable(2'b11),
      // The second ring begins at line 8.
      .flow_base({32'd8, 32'd0}),
      .flow_slots_log2({2{4'd2}}),
      .flow_stride_log2({2{4'd1}}),
      .flow_doorbell({8'd0, written_q[1], 8'd0, written_q[0]}),
      .buffer_id(6'd0),
      .push_valid(1'b0),
      .push_flow(1'b0),
      .push_line(512'd0),
      .*
  );

  // Reads that are out, at most 4: the address of each, the eldest lowest.
  logic [15:0] out_addresses_q = '0;
  logic [2:0] out_q = '0;
  logic [2:0] out_left;
  logic issue;
  assign issue = read && read_ready;
  assign data_valid = answers && out_q != 3'd0;
  assign out_left = out_q - 3'(data_valid);

  // What memory has at the address of the first read: its slot's last entry, or nothing.
  logic from;
  logic [1:0] slot;
  logic [7:0] written;
  logic [7:0] number;
  assign from = out_addresses_q[3];
  assign slot = out_addresses_q[2:1];
  assign written = written_q[from];
  assign number = written - 8'd1 - ((written - 8'd1 - 8'(slot)) & 8'd3);
  always_comb begin
    data = '0;
    if (out_addresses_q[0]) begin
      // A second line says whose it is; it would be a new header, too.
      data[0] = 1'b1;
      data[15:8] = number;
      data[16] = from;
    end else if (written > 8'(slot)) begin
      data[0] = !number[2];
      data[7:4] = nic_pkg::ENTRY_REQUEST;
      data[31:16] = two_q[from][slot] ? 16'd60 : 16'd8;
      data[71:64] = number;
      data[72] = from;
    end
  end

  logic entry_from;
  assign entry_from = entry.flow[0];
  initial assume (rst);
  always_ff @(posedge clk) begin
    if (rst) begin
      out_q <= '0;
      for (int i = 0; i < 2; i++) begin
        written_q[i] <= '0;
        two_q[i] <= '0;
        taken_q[i] <= '0;
      end
    end else begin
      for (int i = 0; i < 2; i++) begin
        if (host_writes[i] && 8'(written_q[i] - flow_taken[16*i+:8]) < 8'd4 && written_q[i] < 8'd100) begin
          written_q[i] <= written_q[i] + 8'd1;
          two_q[i][written_q[i][1:0]] <= host_two_lines[i];
        end
        assert (flow_taken[16*i+:8] == taken_q[i]);
      end
      out_q <= out_left + 3'(issue);
      out_addresses_q <= data_valid ? out_addresses_q >> 4 : out_addresses_q;
      if (issue) out_addresses_q[4*out_left[1:0]+:4] <= read_address[3:0];
      assert (out_q <= 3'd4);
      if (entry_valid) begin
        taken_q[entry_from] <= taken_q[entry_from] + 8'd1;
        // Of the flow that wrote it, once, in order, and nothing that was not written.
        assert (entry.tag[8] == entry_from);
        assert (entry.tag[7:0] == taken_q[entry_from]);
        assert (taken_q[entry_from] != written_q[entry_from]);
        assert (entry.kind == nic_pkg::ENTRY_REQUEST);
        assert (entry.lines == (two_q[entry_from][taken_q[entry_from][1:0]] ? 6'd2 : 6'd1));
      end
      // A second line is that of the entry whose buffer it goes to.
      if (buffer_write && !buffer_take) begin
        assert (entry_valid && buffer_data[16] == entry_from && buffer_data[15:8] == entry.tag[7:0]);
      end
      if (credit_take) assert (credit_available[credit_flow] && buffer_valid && buffer_take && buffer_write);
    end
  end
endmodule
