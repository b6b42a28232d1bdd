// The wire between the NIC's clock (`clk`) and those of the MAC, one for each direction.
//
// The wire does not wait. A line that finds no room spoils its packet: that ends with a mark in place of a line, and the NIC drops and
// counts it. Of the packets that come before there is room for the mark nothing is left: it stands for them too.
module wire_crossing #(
    // Lines on their way from the wire, as a logarithm.
    parameter int ARRIVING_LOG2 = 4
) (
    input logic clk,
    input logic rst,
    // From the NIC.
    input logic tx_valid,
    output logic tx_ready,
    input logic [nic_pkg::LINE_BITS-1:0] tx_data,
    input logic [nic_pkg::LINE_BYTES_LOG2:0] tx_bytes,
    input logic tx_last,
    input logic [47:0] tx_remote,
    // To the NIC.
    output logic rx_valid,
    output logic [nic_pkg::LINE_BITS-1:0] rx_data,
    output logic [nic_pkg::LINE_BYTES_LOG2:0] rx_bytes,
    output logic rx_last,
    output logic rx_spoiled,
    output logic [47:0] rx_remote,
    // To the MAC.
    input logic mac_tx_clk,
    input logic mac_tx_rst,
    output logic mac_tx_valid,
    input logic mac_tx_ready,
    output logic [nic_pkg::LINE_BITS-1:0] mac_tx_data,
    output logic [nic_pkg::LINE_BYTES_LOG2:0] mac_tx_bytes,
    output logic mac_tx_last,
    output logic [47:0] mac_tx_remote,
    // From the MAC.
    input logic mac_rx_clk,
    input logic mac_rx_rst,
    input logic mac_rx_valid,
    input logic [nic_pkg::LINE_BITS-1:0] mac_rx_data,
    input logic [nic_pkg::LINE_BYTES_LOG2:0] mac_rx_bytes,
    input logic mac_rx_last,
    input logic [47:0] mac_rx_remote
);
  localparam int LEAVING_BITS = nic_pkg::LINE_BITS + nic_pkg::LINE_BYTES_LOG2 + 50;
  localparam int ARRIVING_BITS = LEAVING_BITS + 1;

  clock_fifo #(
      .WIDTH(LEAVING_BITS),
      .DEPTH_LOG2(3)
  ) leaving (
      .push_clk(clk),
      .push_rst(rst),
      .push(tx_valid),
      .push_data({tx_last, tx_bytes, tx_remote, tx_data}),
      .push_ready(tx_ready),
      .pop_clk(mac_tx_clk),
      .pop_rst(mac_tx_rst),
      .pop(mac_tx_ready),
      .pop_valid(mac_tx_valid),
      .pop_data({mac_tx_last, mac_tx_bytes, mac_tx_remote, mac_tx_data})
  );

  // Of the packet that arrives some lines are lost, and its mark has not been written yet; it has ended meanwhile.
  logic spoiled_q;
  logic ended_q;
  logic arriving_ready;
  logic push;
  logic mark;
  // While the mark is owed, nothing of other packets is taken: the mark stands for them too.
  assign mark = spoiled_q && (ended_q || (mac_rx_valid && mac_rx_last));
  assign push = mark || (mac_rx_valid && !spoiled_q);
  always_ff @(posedge mac_rx_clk) begin
    if (mac_rx_rst) begin
      spoiled_q <= 1'b0;
      ended_q <= 1'b0;
    end else if (mark) begin
      // A packet that began while the mark waited is spoiled too, until it ends.
      if (arriving_ready) begin
        spoiled_q <= mac_rx_valid && !mac_rx_last;
        ended_q <= 1'b0;
      end else ended_q <= mac_rx_valid ? mac_rx_last : ended_q;
    end else if (mac_rx_valid && !arriving_ready) begin
      spoiled_q <= 1'b1;
      ended_q <= mac_rx_last;
    end
  end
  clock_fifo #(
      .WIDTH(ARRIVING_BITS),
      .DEPTH_LOG2(ARRIVING_LOG2)
  ) arriving (
      .push_clk(mac_rx_clk),
      .push_rst(mac_rx_rst),
      .push(push),
      .push_data({mark, mark || mac_rx_last, mac_rx_bytes, mac_rx_remote, mac_rx_data}),
      .push_ready(arriving_ready),
      .pop_clk(clk),
      .pop_rst(rst),
      .pop(1'b1),
      .pop_valid(rx_valid),
      .pop_data({rx_spoiled, rx_last, rx_bytes, rx_remote, rx_data})
  );
endmodule
